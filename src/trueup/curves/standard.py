"""The accuracy standard for migrated large models: each criterion with its number, threshold and origin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from trueup.curves.columns import GRAD_NORM, LOSS, STEP
from trueup.curves.curve import Curve
from trueup.curves.pairing import PairedCurves
from trueup.curves.thresholds import (
    ALLOWANCE,
    DEFAULT_HOURS,
    DEFAULT_STEPS,
    FEWEST_REPEATS,
    FEWEST_STEPS,
    FIRST_ABS,
    FIRST_REL,
    MEAN_ABS,
    MEAN_REL,
    NORM_REL,
    NORMAL_MAD,
    ROUGH,
    WIDEST,
)
from trueup.types.arrays import Floats
from trueup.types.codes import CriterionCode as Code
from trueup.types.reason import Reason, reason

ADVISORY = reason(Code.ADVISORY)


class Met(str, Enum):
    """How a criterion came out."""

    MET = "met"
    NOT_MET = "not met"
    WARNING = "warning"
    """a monitoring indicator beyond its threshold, or advice not followed: does not reject by itself"""
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One line of the standard."""

    key: str
    value: Reason
    """what was measured"""
    threshold: Reason
    status: Met
    decisive: bool
    """whether it can reject the run"""
    origin: Reason
    """where the threshold comes from"""
    note: Reason | None = None
    numbers: tuple[tuple[str, float | None], ...] = ()

    @property
    def title(self) -> Reason:
        """What it is about."""
        return reason(Code.TITLE, key=self.key)

    def to_json(self) -> dict[str, object]:
        """Fields by name; no note is ``""``."""
        return {
            "key": self.key,
            "title": self.title,
            "value": self.value,
            "threshold": self.threshold,
            "status": self.status.value,
            "decisive": self.decisive,
            "origin": self.origin,
            "note": self.note or "",
            "numbers": dict(self.numbers),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveLosses:
    """The loss of target and first reference at their common steps, and the repeats (k, S)."""

    target: Floats
    reference: Floats
    repeats: Floats
    apart: float | None
    """largest mean |difference| between two of the repeats"""


def criteria(
    paired: PairedCurves,
    target: Curve,
    references: Sequence[Curve],
    *,
    frozen: bool = False,
    from_the_first: bool = True,
) -> list[Criterion]:
    """Every criterion that a log alone can answer, in the standard's order.

    ``frozen``: no weight is updated; ``from_the_first``: the steps begin where both logs do.
    """
    losses = _losses(paired)
    found = [observed_steps(paired, target, frozen=frozen), repeats(references), smooth(paired)]
    if losses is not None:
        if from_the_first:
            found.append(first_loss(losses))
        if not frozen:
            found.append(mean_loss(losses))
    else:
        found += _no_losses()
    found += global_norm(paired)
    return found


def _no_losses() -> list[Criterion]:
    """The standard is one of losses: without them nothing else accepts a run."""
    lines = (
        ("first_loss", FIRST_ABS, FIRST_REL, "loss 1"),
        ("mean_loss", MEAN_ABS, MEAN_REL, "loss 2"),
    )
    return [
        Criterion(
            key=key,
            value=reason(Code.NOT_LOGGED),
            threshold=below(limit, share),
            status=Met.UNDECIDED,
            decisive=True,
            origin=reason(Code.STANDARD, rule=rule),
            note=reason(Code.NO_LOSS),
            numbers=(("threshold_abs", limit), ("threshold_rel", share)),
        )
        for key, limit, share, rule in lines
    ]


def _losses(paired: PairedCurves) -> CurveLosses | None:
    target, first = paired.target.get(LOSS), paired.references.sides[0].get(LOSS)
    every = paired.references.stacked(LOSS)
    if target is None or first is None or every is None:
        return None
    apart = paired.references.once("apart_abs", LOSS, lambda: _own_spread(every))
    return CurveLosses(target=target, reference=first, repeats=every, apart=apart)


def observed_steps(paired: PairedCurves, target: Curve, *, frozen: bool = False) -> Criterion:
    """At least 1,000 steps; 5,000 or 12 hours unless a person chose fewer.

    Where no weight is updated every step is judged by itself: fewer leave less seen, not undecided.
    """
    first, last = int(paired.steps[0]), int(paired.steps[-1])
    observed = last - first + target.interval
    hours = target.hours
    enough = observed >= DEFAULT_STEPS or (hours is not None and hours >= DEFAULT_HOURS)
    note = None if enough else reason(Code.FEWER_THAN_DEFAULT, default=DEFAULT_STEPS, hours=DEFAULT_HOURS)
    status = Met.MET if observed >= FEWEST_STEPS or enough else Met.UNDECIDED
    if status is Met.UNDECIDED:
        note = reason(Code.TOO_FEW, num=FEWEST_STEPS)
    if status is Met.UNDECIDED and frozen:
        status = Met.WARNING
        note = reason(Code.EACH_STEP, num=FEWEST_STEPS)
    return Criterion(
        key="steps",
        value=reason(Code.STEPS, steps=observed, hours=hours),
        threshold=reason(Code.ENOUGH_STEPS, num=FEWEST_STEPS, default=DEFAULT_STEPS, hours=DEFAULT_HOURS),
        status=status,
        decisive=True,
        origin=reason(Code.STANDARD, rule="test standard 1"),
        note=note,
        numbers=(("steps", float(observed)), ("hours", hours)),
    )


def repeats(references: Sequence[Curve]) -> Criterion:
    """At least two runs of the reference with determinism off."""
    num = len(references)
    same = [
        (a.name, b.name) for i, a in enumerate(references) for b in references[:i] if _logs_the_same(a, b)
    ]
    status = Met.MET if num >= FEWEST_REPEATS else Met.WARNING
    note = None if status is Met.MET else reason(Code.NO_REPEATS)
    if same:
        status = Met.WARNING
        note = reason(Code.SAME_REPEATS, first=same[0][0], second=same[0][1])
    return Criterion(
        key="repeats",
        value=reason(Code.COUNT, num=num),
        threshold=reason(Code.AT_LEAST, num=FEWEST_REPEATS),
        status=status,
        decisive=False,
        origin=reason(Code.STANDARD, rule="test standard 4"),
        note=note,
        numbers=(("repeats", float(num)),),
    )


def _logs_the_same(one: Curve, other: Curve) -> bool:
    """Whether two logs hold the same losses at the same steps, and any at all."""
    columns = [STEP, LOSS]
    if LOSS not in one.frame.columns or LOSS not in other.frame.columns:
        return False
    own = one.frame.select(columns)
    return own.equals(other.frame.select(columns)) and bool(own[LOSS].is_not_null().any())


def smooth(paired: PairedCurves) -> Criterion:
    """The reference's loss should be smooth: a rough one hides differences, and feigns them."""
    value = paired.references.once(
        "roughness", LOSS, lambda: _roughness(paired.references.sides[0].get(LOSS))
    )
    rough = value > ROUGH
    return Criterion(
        key="smooth",
        value=reason(Code.RELATIVE, rel=_known(value)),
        threshold=reason(Code.AT_MOST, rel=ROUGH),
        status=Met.WARNING if rough else Met.UNDECIDED if math.isnan(value) else Met.MET,
        decisive=False,
        origin=reason(Code.OF_TRUEUP, rule="test standard 3"),
        note=reason(Code.ROUGH) if rough else None,
        numbers=(("roughness", value),),
    )


def _roughness(loss: Floats | None) -> float:
    """Robust standard deviation of a curve around its neighbours, relative to it."""
    known = loss[np.isfinite(loss)] if loss is not None else np.zeros(0)
    if len(known) < 3:
        return math.nan
    steps = np.abs(np.diff(known)) / np.maximum(np.abs(known[1:]), 1e-30)
    return float(np.median(steps)) * NORMAL_MAD / math.sqrt(2)


def first_loss(losses: CurveLosses) -> Criterion:
    """Absolute error of the first loss below 0.005, or relative error below 0.5 %."""
    both = np.flatnonzero(np.isfinite(losses.target) | np.isfinite(losses.reference))
    at = int(both[0]) if len(both) else 0
    target, reference = float(losses.target[at]), float(losses.reference[at])
    apart = abs(target - reference)
    relative = apart / abs(reference) if reference else math.inf
    own = _own_spread(losses.repeats[:, at : at + 1])
    limit, relaxed = _relaxed(FIRST_ABS, own)
    met = apart < limit or relative < FIRST_REL
    return Criterion(
        key="first_loss",
        value=difference(apart, relative),
        threshold=below(limit, FIRST_REL),
        status=Met.MET if met else Met.NOT_MET,
        decisive=True,
        origin=_origin("loss 1", relaxed, own),
        note=reason(Code.BOTH_LOSSES, target=_known(target), reference=_known(reference)),
        numbers=(("abs", apart), ("rel", relative), ("threshold_abs", limit), ("threshold_rel", FIRST_REL)),
    )


def mean_loss(losses: CurveLosses) -> Criterion:
    """Mean absolute error of the loss below 0.01, or mean relative error below 1 %."""
    apart = np.abs(losses.target - losses.reference)
    known = np.isfinite(apart)
    mean_abs = float(apart[known].mean()) if known.any() else math.nan
    size = np.abs(losses.reference[known])
    mean_rel = float((apart[known] / np.maximum(size, 1e-30)).mean()) if known.any() else math.nan
    own = losses.apart
    limit, relaxed = _relaxed(MEAN_ABS, own)
    lost = int((~np.isfinite(losses.target) & np.isfinite(losses.reference)).sum())
    met = (mean_abs < limit or mean_rel < MEAN_REL) and not lost
    note = reason(Code.LOST_LOSSES, num=lost) if lost else None
    level = float(size.mean()) if len(size) else math.nan
    strict = mean_abs < MEAN_ABS or mean_rel < MEAN_REL
    too_wide = relaxed and met and not strict and own is not None and own > WIDEST * level
    if too_wide and own is not None:
        note = reason(Code.WIDE_REPEATS, spread=own, rel=_known(own / level))
    return Criterion(
        key="mean_loss",
        value=difference(mean_abs, mean_rel),
        threshold=below(limit, MEAN_REL),
        status=Met.UNDECIDED if too_wide else Met.MET if met else Met.NOT_MET,
        decisive=True,
        origin=_origin("loss 2", relaxed, own),
        note=note,
        numbers=(
            ("abs", mean_abs),
            ("rel", mean_rel),
            ("threshold_abs", limit),
            ("threshold_rel", MEAN_REL),
            ("repeats_abs", own),
        ),
    )


def global_norm(paired: PairedCurves) -> list[Criterion]:
    """Mean relative error of the global gradient norm within 10 %: watched, does not reject by itself."""
    target, reference = paired.target.get(GRAD_NORM), paired.references.sides[0].get(GRAD_NORM)
    if target is None or reference is None:
        return []
    known = np.isfinite(target) & np.isfinite(reference) & (reference != 0)
    if not known.any():
        return []
    value = float((np.abs(target[known] - reference[known]) / np.abs(reference[known])).mean())
    stacked = paired.references.stacked(GRAD_NORM)
    own = paired.references.once("relative", GRAD_NORM, lambda: _relative_spread(stacked))
    limit, relaxed = _relaxed(NORM_REL, own)
    beyond = value > limit
    return [
        Criterion(
            key="global_norm",
            value=reason(Code.RELATIVE, rel=value),
            threshold=reason(Code.AT_MOST, rel=limit),
            status=Met.WARNING if beyond else Met.MET,
            decisive=False,
            origin=_origin("monitoring indicator", relaxed, own, relative=True),
            note=reason(Code.INDICATOR) if beyond else None,
            numbers=(("rel", value), ("threshold_rel", limit), ("repeats_rel", own)),
        )
    ]


def _own_spread(every: Floats) -> float | None:
    """Largest mean |difference| between two of the repeats (k, S)."""
    found = []
    for i in range(len(every)):
        for j in range(i):
            gap = np.abs(every[i] - every[j])
            if np.isfinite(gap).any():
                found.append(float(np.nanmean(gap)))
    return max(found, default=None)


def _relative_spread(every: Floats | None) -> float | None:
    found: list[float] = []
    if every is None:
        return None
    for i in range(len(every)):
        for j in range(i):
            size = np.abs(every[j])
            known = np.isfinite(every[i]) & np.isfinite(size) & (size > 0)
            if known.any():
                found.append(float((np.abs(every[i][known] - every[j][known]) / size[known]).mean()))
    return max(found, default=None)


def _relaxed(threshold: float, own: float | None) -> tuple[float, bool]:
    """The standard's threshold, or the reference's own fluctuation where that is larger."""
    wider = 0.0 if own is None else ALLOWANCE * own
    return (wider, True) if wider > threshold else (threshold, False)


def _origin(rule: str, relaxed: bool, own: float | None, *, relative: bool = False) -> Reason:
    if not relaxed or own is None:
        return reason(Code.STANDARD, rule=rule)
    return reason(Code.RELAXED, rule=rule, spread=own, is_relative=relative, allowance=ALLOWANCE)


def below(limit: float, share: float) -> Reason:
    """Two thresholds, either suffices: an absolute and a relative difference."""
    return reason(Code.BELOW_EITHER, abs=limit, rel=share)


def difference(absolute: float | None, relative: float | None) -> Reason:
    """What was measured, absolute and relative; NaN is unknown."""
    return reason(Code.ABS_AND_REL, abs=_known(absolute), rel=_known(relative))


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
