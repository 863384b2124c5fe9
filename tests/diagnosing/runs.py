"""Small GPT runs with one thing wrong, captured whole, and origins at a named site of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bugzoo.models.gpt import GPT, GPTConfig, batch, loss_of
from torch import Tensor

import trueup
from tests.diagnosing.cases import origin
from trueup.diagnosing.evidence import Evidence
from trueup.store import StepView, Trace, step_view

SMALL = GPTConfig(vocab_size=64, num_layers=2, hidden_size=32, num_heads=4, seq_length=16)

Loss = Callable[[torch.nn.Module, Tensor, Tensor], Tensor]


def train(
    *,
    steps: int = 2,
    config: GPTConfig = SMALL,
    change: Callable[[GPT], Any] = lambda model: None,
    optimizer: Callable[[GPT], torch.optim.Optimizer] = lambda m: torch.optim.AdamW(m.parameters(), 1e-2),
    loss: Loss = loss_of,
    data: Callable[[int], tuple[Tensor, Tensor]] | None = None,
    microbatches: int = 1,
    clear: bool = True,
    before_step: Callable[[GPT, int], Any] = lambda model, step: None,
) -> None:
    """A plain training loop; every argument is a place for a fault."""
    torch.manual_seed(0)
    model = GPT(config)
    change(model)
    updater = optimizer(model)
    for step in range(steps):
        for micro in range(microbatches):
            ids, labels = data(step) if data else batch(config, step=10 * step + micro, size=2)
            (loss(model, ids, labels) / microbatches).backward()
        before_step(model, step)
        updater.step()
        if clear:
            updater.zero_grad()


def capture(path: Path, *, level: str = "mix", task: str = "tensor", **program: Any) -> Trace:
    """A captured ``train``."""
    with trueup.Tracer(path, level=level, task=task, steps="all"):
        train(**program)
    return Trace(path)


def evidence_at(
    target: Trace,
    reference: Trace,
    name: str,
    phase: str,
    slot: str,
    *,
    step: int = 0,
    rank: int = 0,
    ordinal: int = 0,
    parent: str | None = None,
    **given: Any,
) -> Evidence:
    """Evidence about one site, which both runs must have unless only one of them does."""
    records = [
        _record(step_view(t, step, rank), name, phase, slot, ordinal, parent) for t in (target, reference)
    ]
    assert records != [None, None], f"neither run has {name} {phase} {slot}"
    about = origin(phase=phase, slot=slot, module=given.pop("module", parent or name))
    about = replace(
        about, step=step, rank=rank, target_record=records[0], reference_record=records[1], **given
    )
    return Evidence.from_origin(about, target, reference)


def _record(
    index: StepView, name: str, phase: str, slot: str, ordinal: int, parent: str | None
) -> int | None:
    for call, called in enumerate(index.name):
        if called != name or index.ordinal[call] != ordinal or index.mode[call] == "recompute":
            continue
        above = index.parent[call]
        if parent is not None and (above < 0 or index.name[above] != parent):
            continue
        found = index.record(call, phase, slot)
        if found is not None:
            return found
    return None
