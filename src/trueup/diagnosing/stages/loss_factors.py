"""Numbers that multiply the loss at each position: masks, and what the program computes, such as advantages.

A mask says which positions count, and belongs to the data. Other factors are computed outside the model, of
what it gave or of rewards: that they differ says that the loss is made otherwise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.comparing.losses.calls import loss_records
from trueup.diagnosing.kinds.thresholds import MANY_NUMBERS
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.from_origin import finding_from_origin
from trueup.diagnosing.thresholds import NORMALISED
from trueup.store import StepView
from trueup.store.same_rows import MASK
from trueup.types.arrays import Floats
from trueup.types.codes import BatchCode as Batches
from trueup.types.finding import Basis, Finding, Origin, Stage
from trueup.types.reason import Reason, reason


def hides_otherwise(target: Floats, reference: Floats) -> bool:
    """Whether two factors of the loss are masks that differ: a position counts in one run alone, or neither
    side has more than one number beside zero. What differs in numbers where both count, advantages or
    importance ratios, is computed and hides nothing; nor does what has a sign."""
    sides = target.ravel(), reference.ravel()
    counts = [side != 0 for side in sides]
    if not np.array_equal(*counts) and min(side.min() for side in sides) >= 0:
        return True
    shown = [np.unique(side[count]) for side, count in zip(sides, counts, strict=True)]
    return max(map(len, shown)) <= 1


def values_of(origin: Origin, context: Context) -> tuple[Floats, Floats] | None:
    """Of both sides, where they are known and more than a number."""
    evidence = None if context.evidence_of is None else context.evidence_of(origin)
    if evidence is None or evidence.target_values is None or evidence.reference_values is None:
        return None
    target, reference = evidence.target_values, evidence.reference_values
    return (target, reference) if target.shape == reference.shape and target.size > 1 else None


def factor_findings(context: Context) -> tuple[Finding, ...]:
    """One where the first step's differences begin at factors of the loss that are no masks."""
    first = min((one.step for one in context.passive), default=None)
    for origin in context.passive:
        is_factor = origin.phase == "loss" and MASK in origin.slot
        if origin.step != first or first != context.steps[0][0] or not is_factor:
            continue
        both = values_of(origin, context)
        if both is None or hides_otherwise(*both):
            continue
        target, reference = (side.ravel() for side in both)
        apart = np.flatnonzero(target != reference)
        at = int(apart[np.argmax(np.abs(target - reference)[apart])])
        numbers = {"num": len(apart), "total": target.size, "at": at}
        sides = {"target": float(target[at]) + 0.0, "reference": float(reference[at]) + 0.0}
        factors = reason(Batches.FACTORS, **numbers, **sides)
        finding = finding_from_origin(origin, context)
        by_rank = _normalised_by_rank(origin.slot.partition(".")[0], context)
        if by_rank is not None:
            side, moments = by_rank
            return (
                replace(
                    finding,
                    stage=Stage.FORWARD,
                    headline=reason(Batches.NORMALISED_BY_RANK, side=side),
                    kinds=(),
                    causes=(Reason(Batches.NORMALISED_CAUSE),),
                    module=None,
                    next_note=None,
                    basis=Basis.RECORDED,
                    origin=None,
                    evidence=(moments, factors),
                ),
            )
        kinds = tuple(kind for kind in finding.kinds if kind.name in ("wrong_scale", "wrong_sign"))
        return (
            replace(
                finding,
                stage=Stage.FORWARD,
                headline=finding.headline if kinds else reason(Batches.FACTORS_DIFFER),
                kinds=kinds,
                causes=kinds[0].causes if kinds else (),
                module=None,
                next_note=finding.next_note if kinds else None,
                basis=Basis.RECORDED,
                origin=None,
                evidence=(factors, *(one for one in finding.evidence if kinds)),
            ),
        )
    return ()


def _normalised_by_rank(slot: str, context: Context) -> tuple[str, Reason] | None:
    """Which run makes the mean of these factors 0 and their deviation 1 on every rank, where those of all
    ranks together are so in the other run; with what both are. None where neither run does, or both do."""
    held = [[_factors(book, slot) for book in context.pair(rank=rank)] for rank in context.ranks]
    sides = [[of[at] for of in held] for at in (0, 1)]
    known = [[one for one in side if one is not None and one.size >= MANY_NUMBERS] for side in sides]
    if len(held) < 2 or any(len(one) < len(held) for one in known):
        return None
    for side, at in (("target", 0), ("reference", 1)):
        own, other = known[at], known[1 - at]
        each = all(is_normalised(one) for one in own) and not all(is_normalised(one) for one in other)
        if each and is_normalised(np.concatenate(other)):
            moments = {
                name: tuple(_moments(one) for one in of)
                for name, of in zip(("target", "reference"), known, strict=True)
            }
            together = {"together": _moments(np.concatenate(other)), "other": _OTHER[side]}
            return side, reason(Batches.MOMENTS_OF_RANKS, **moments, **together)
    return None


_OTHER = {"target": "reference", "reference": "target"}


def is_normalised(numbers: Floats) -> bool:
    """Whether the mean is 0 and the deviation 1, of all numbers or of all but one, to what programs add to
    the deviation (1e-4)."""
    deviations = (float(numbers.std(ddof=free)) for free in (0, 1))
    apart = min(abs(one - 1) for one in deviations)
    return abs(float(numbers.mean())) <= NORMALISED and apart <= NORMALISED


def _moments(numbers: Floats) -> str:
    return f"{round(float(numbers.mean()), 3) + 0.0:.3g}, {float(numbers.std()):.3g}"


def _factors(book: StepView, slot: str) -> Floats | None:
    """In one dimension; zeros, which a mask leaves, left out."""
    values = next((book.value(record) for _, record in loss_records(book, slot)), None)
    return None if values is None else values.ravel()[values.ravel() != 0].astype(np.float64)
