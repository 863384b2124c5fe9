"""Captures of the implementations, in this process."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.matching.implementations.sizes import ALL_SIZES
from tests.matching.implementations.train import train
from trueup import Tracer
from trueup.importers import open_trace
from trueup.matching import StepMatch, match_step
from trueup.matching.bridge import Bridge, build_bridge

PAIRS = (
    ("megatron", "hf"),
    ("hf", "megatron"),
    ("torchtitan", "hf"),
    ("hf", "torchtitan"),
    ("torchtitan", "megatron"),
)


def captured(
    folder: Path,
    name: str,
    *,
    sizes: str = "plain",
    change: str | None = None,
    task: str = "tensor",
    sgd: bool = False,
) -> Path:
    """Two steps of one implementation."""
    path = folder / f"{name}_{sizes}_{change}_{task}{'_sgd' * sgd}"
    threads = torch.get_num_threads()
    try:
        with Tracer(path, framework="torch", level="mix", task=task, steps="0-1"):
            train(name, sizes=ALL_SIZES[sizes], change=change, sgd=sgd)
    finally:
        torch.set_num_threads(threads)
    return path


def matched(target: Path, reference: Path, steps: tuple[int, ...] = (0, 1)) -> list[StepMatch]:
    """The matches of some steps, without a map."""
    traces = open_trace(target), open_trace(reference)
    bridge: Bridge | None = None
    out = []
    for step in steps:
        tables = traces[0].read(step, 0), traces[1].read(step, 0)
        bridge = bridge or build_bridge(*traces, tables)
        out.append(match_step(*tables, bridge))
    return out
