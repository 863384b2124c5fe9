"""Captures of the implementations, in this process."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.matching.implementations.sizes import SIZES
from tests.matching.implementations.train import train
from trueup import Tracer
from trueup.matching import StepMatch, match_step
from trueup.matching.bridge import Bridge, build_bridge
from trueup.store import Trace

PAIRS = (
    ("megatron", "hf"),
    ("hf", "megatron"),
    ("torchtitan", "hf"),
    ("hf", "torchtitan"),
    ("torchtitan", "megatron"),
)


def captured(
    folder: Path, name: str, *, sizes: str = "plain", change: str | None = None, task: str = "tensor"
) -> Path:
    """Two steps of one implementation."""
    path = folder / f"{name}_{sizes}_{change}_{task}"
    threads = torch.get_num_threads()
    try:
        with Tracer(path, level="mix", task=task, steps="0-1"):
            train(name, sizes=SIZES[sizes], change=change)
    finally:
        torch.set_num_threads(threads)
    return path


def matched(target: Path, reference: Path, steps: tuple[int, ...] = (0, 1)) -> list[StepMatch]:
    """The matches of some steps, without a map."""
    traces = Trace(target), Trace(reference)
    bridge: Bridge | None = None
    out = []
    for step in steps:
        tables = traces[0].read(step, 0), traces[1].read(step, 0)
        bridge = bridge or build_bridge(*traces, tables)
        out.append(match_step(*tables, bridge))
    return out
