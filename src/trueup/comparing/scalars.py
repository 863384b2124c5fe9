"""Loss, learning rate, batch and the like, step by step on both sides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_EXACT = (
    "learning_rate",
    "loss_scale",
    "skipped",
    "microbatches",
    "tokens",
    "batch_size",
    "global_batch_size",
)
_MEASURED = ("loss", "grad_norm", "local_norm")
NORM = "grad_norm"
DECISIVE = ("learning_rate", "loss_scale", "skipped", NORM)
"""A difference here is one even where every record agrees. Not the batch digest: it sees the dtype of the
inputs, and a batch that really differs differs in the root's own inputs."""


def compare_scalars(
    target: list[dict[str, Any]],
    reference: list[dict[str, Any]],
    limits: dict[int, dict[str, float]],
    steps: dict[int, int],
    *,
    rank: int = 0,
) -> list[dict[str, Any]]:
    """One entry a step and name that both sides hold, of one rank.

    ``limits``: per compared step the tolerance (relative) of measured numbers: that of the loss record, and
    the largest of the gradient records. What is set, not measured, must be equal to 1e-9 of itself, or one
    the other in float32.
    ``beyond`` is null where the step was not captured. ``steps``: target step -> reference step, where the
    numbers differ.
    """
    there = {line.get("step"): line for line in reference}
    out = []
    for line in target:
        step = line.get("step")
        other = there.get(steps.get(step, step) if isinstance(step, int) else step)
        if other is None or not isinstance(step, int):
            continue
        for name, mine, theirs in _pairs(line, other):
            out.append({"rank": rank, **_entry(step, name, mine, theirs, limits.get(step))})
    return out


def _pairs(line: dict[str, Any], other: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    pairs = [("batch_digest", line.get("batch_digest"), other.get("batch_digest"))]
    for name in (*_MEASURED, *_EXACT):
        mine, theirs = line.get(name), other.get(name)
        if isinstance(mine, list) and isinstance(theirs, list):
            single = len(mine) == len(theirs) == 1
            pairs += [
                (name if single else f"{name}[{i}]", a, b)
                for i, (a, b) in enumerate(zip(mine, theirs, strict=False))
            ]
        else:
            pairs.append((name, mine, theirs))
    return [(name, a, b) for name, a, b in pairs if a is not None and b is not None]


def _entry(step: int, name: str, mine: Any, theirs: Any, limits: dict[str, float] | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"step": step, "name": name, "target": mine, "reference": theirs}
    entry |= {"abs_diff": None, "rel_diff": None, "beyond": mine != theirs}
    if isinstance(mine, str) or isinstance(theirs, str) or isinstance(mine, list):
        return entry
    a, b = float(mine), float(theirs)
    if (math.isnan(a) and math.isnan(b)) or a == b:
        return entry | {"abs_diff": 0.0, "rel_diff": 0.0, "beyond": False}
    difference = abs(a - b)
    relative = difference / abs(b) if b else math.inf
    entry |= {"abs_diff": difference, "rel_diff": relative}
    base = name.partition("[")[0]
    if base in _MEASURED:
        entry["beyond"] = (
            None if limits is None else not relative <= limits["loss" if base == "loss" else "gradient"]
        )
    else:
        entry["beyond"] = not (relative <= 1e-9 or _is_rounded(a, b) or _is_rounded(b, a))
    return entry


def _is_rounded(rounded: float, exact: float) -> bool:
    """Whether one side is what float32, in which some frameworks hold their settings, leaves of the other."""
    return rounded == float(np.float32(exact))
