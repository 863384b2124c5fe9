"""Loss, learning rate, batch and the like, step by step on both sides."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trueup.comparing.thresholds import LATER_LOSS, LATER_LOSS_AFTER_EQUAL, SET_EXACTLY

RATE = "learning_rate"
_EXACT = (
    RATE,
    "loss_scale",
    "skipped",
    "microbatches",
    "tokens",
    "batch_size",
    "global_batch_size",
)
MEASURED = ("loss", "grad_norm", "local_norm")
NORM = "grad_norm"
DECISIVE = (RATE, "skipped", NORM)
"""A difference here is one even where every record agrees. Not the batch digest: it sees the dtype of the
inputs, and a batch that really differs differs in the root's own inputs. Not the loss scale: it is taken out
before the update, and what it does to gradients is seen in them."""

Value = object
"""of a scalar: a number, text, or a list of them, as the program gave it"""


BATCH = "batch_digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarPair:
    """One scalar of one step and rank on both sides."""

    rank: int
    step: int
    name: str
    """``learning_rate[1]``: the second of several"""
    target: Value
    reference: Value
    abs_diff: float | None = None
    rel_diff: float | None = None
    beyond: bool | None = None
    """None where the step was not captured, and the value is measured"""

    @property
    def base(self) -> str:
        """The name without its index."""
        return self.name.partition("[")[0]


def compare_scalars(
    target: Sequence[Mapping[str, object]],
    reference: Sequence[Mapping[str, object]],
    limits: Mapping[int, Mapping[str, float]],
    steps: Mapping[int, int],
    *,
    rank: int = 0,
) -> list[ScalarPair]:
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
        for name, one, two in _pairs(line, other):
            pair = ScalarPair(rank=rank, step=step, name=name, target=one, reference=two)
            out.append(_judged(pair, limits.get(step)))
    return out


def _pairs(line: Mapping[str, object], other: Mapping[str, object]) -> list[tuple[str, Value, Value]]:
    pairs = [(BATCH, line.get(BATCH), other.get(BATCH))]
    for name in (*MEASURED, *_EXACT):
        target, reference = line.get(name), other.get(name)
        if isinstance(target, list) and isinstance(reference, list):
            if name == RATE and len(target) != len(reference):  # groups of other numbers: as sets
                a, b = (", ".join(f"{rate:.6g}" for rate in sorted(set(one))) for one in (target, reference))
                pairs += [] if set(target) == set(reference) else [(name, a, b)]
                continue
            single = len(target) == len(reference) == 1
            pairs += [
                (name if single else f"{name}[{i}]", a, b)
                for i, (a, b) in enumerate(zip(target, reference, strict=False))
            ]
        else:
            pairs.append((name, target, reference))
    return [(name, a, b) for name, a, b in pairs if a is not None and b is not None]


def _judged(pair: ScalarPair, limits: Mapping[str, float] | None) -> ScalarPair:
    values = pair.target, pair.reference
    if not all(isinstance(value, (int, float)) for value in values):
        return replace(pair, beyond=values[0] != values[1])
    a, b = (float(value) for value in values if isinstance(value, (int, float)))
    if (math.isnan(a) and math.isnan(b)) or a == b:
        return replace(pair, abs_diff=0.0, rel_diff=0.0, beyond=False)
    difference = abs(a - b)
    relative = difference / abs(b) if b else math.inf
    beyond: bool | None = not (relative <= SET_EXACTLY or _is_rounded(a, b) or _is_rounded(b, a))
    if pair.base in MEASURED:
        limit = None if limits is None else limits["loss" if pair.base == "loss" else "gradient"]
        beyond = None if limit is None else not relative <= limit
    return replace(pair, abs_diff=difference, rel_diff=relative, beyond=beyond)


def _is_rounded(rounded: float, exact: float) -> bool:
    """Whether one side is what float32, in which some frameworks hold their settings, leaves of the other."""
    with np.errstate(over="ignore"):
        return rounded == float(np.float32(exact))


def later_loss(
    scalars: Sequence[ScalarPair], limits: Mapping[int, Mapping[str, float]], *, equal: bool = False
) -> ScalarPair | None:
    """The first loss that is not the other run's bit for bit, where it is of a step that was not captured and
    ``LATER_LOSS`` times as far away as a captured one might be. Rounding that came in since the step before
    moves a loss by some roundings; over many steps it grows without limit, so that losses which begin to
    differ by less are left as they are. ``equal``: all that was compared is bit-identical, so that nothing
    has been rounded otherwise up to there; a tenth of that is enough then."""
    first = other_loss(scalars, limits)
    if first is None or first.rel_diff is None:
        return None
    allowed = max((limit["loss"] or limit["gradient"] for limit in limits.values()), default=0.0)
    times = LATER_LOSS_AFTER_EQUAL if equal else LATER_LOSS
    return first if first.rel_diff > times * allowed > 0 else None


def other_loss(scalars: Sequence[ScalarPair], captured: Container[int]) -> ScalarPair | None:
    """The first loss that is not the other run's bit for bit, where it is of a step that was not captured."""
    losses = sorted((one for one in scalars if one.name == "loss"), key=lambda one: (one.step, one.rank))
    first = next((one for one in losses if one.abs_diff != 0.0), None)
    return None if first is None or first.step in captured else first


def later_batches(scalars: Sequence[ScalarPair], step: int) -> list[ScalarPair]:
    """Digests of the batches of a step that differ, one a rank, where every rank has one batch in both runs
    in all earlier steps: then both make the same of a batch, and this is another. Of ranks but the first,
    ``scalars`` hold what differs."""
    digests = [one for one in scalars if one.name == BATCH]
    before = [one for one in digests if one.step < step]
    if not before or any(one.beyond for one in before):
        return []
    return [one for one in digests if one.step == step and one.beyond]


def batches_again(scalars: Sequence[ScalarPair], apart: Sequence[ScalarPair]) -> tuple[str, int] | None:
    """The side alone whose batch of a step is its own of an earlier one, where both runs had the same, and
    that step; by the first of the ranks, of which every step is held."""
    one = next((one for one in apart if one.rank == min(pair.rank for pair in scalars)), None)
    if one is None:
        return None
    same = [pair for pair in scalars if pair.name == BATCH and pair.rank == one.rank and pair.step < one.step]
    held = {"target": one.target, "reference": one.reference}
    found = [(side, pair.step) for side, digest in held.items() for pair in same if pair.target == digest]
    return found[-1] if len({side for side, _ in found}) == 1 else None


def number(value: Value) -> float | str:
    """A scalar as a reason states it."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
