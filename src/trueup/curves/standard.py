"""The accuracy standard for migrated large models: each criterion with its number, threshold and origin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np

from trueup.curves.columns import GRAD_NORM, LOSS
from trueup.curves.curve import Curve, Floats
from trueup.curves.pairing import Paired

FIRST_ABS, FIRST_REL = 0.005, 0.005
MEAN_ABS, MEAN_REL = 0.01, 0.01
NORM_REL = 0.10
FEWEST_STEPS, DEFAULT_STEPS, DEFAULT_HOURS = 1000, 5000, 12
FEWEST_REPEATS = 2
ALLOWANCE = 1.25
"""What few repeats may underestimate their own spread by: a threshold relaxed to it is this many times as
large."""
WIDEST = 0.05
"""Repeats further apart than this share of the loss are no fluctuation to relax a threshold to."""
ROUGH = 0.05
"""A reference whose loss jumps by more than this share of itself from step to step is a rough one."""

ADVISORY = (
    "The standard is advisory: the accuracy of a large model depends on its field, structure, size and "
    "hyperparameters, and there is no complete and binding one."
)
_GUIDE = "migration standard"


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
    title: str
    value: str
    """what was measured, as the standard wants it written: absolute 0.xx, relative x.x %"""
    threshold: str
    status: Met
    decisive: bool
    """whether it can reject the run"""
    origin: str
    """where the threshold comes from"""
    note: str = ""
    numbers: tuple[tuple[str, float | None], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"status": self.status.value, "numbers": dict(self.numbers)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The loss of target and first reference at their common steps, and the repeats (k, S)."""

    target: Floats
    reference: Floats
    repeats: Floats
    apart: float | None
    """largest mean |difference| between two of the repeats"""


def absolute(value: float | None) -> str:
    """An absolute difference as the standard writes it: ``0.0031``."""
    if value is None or not math.isfinite(value):
        return "–" if value is None or math.isnan(value) else str(value)
    if value == 0:
        return "0"
    digits = max(2, 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}" if digits <= 9 else f"{value:.1e}"


def percent(value: float | None) -> str:
    """A relative difference as the standard writes it: ``0.4 %``; more places where it would read 0.0."""
    if value is None or not math.isfinite(value):
        return "–" if value is None or math.isnan(value) else f"{value} %"
    size = abs(100 * value)
    if size == 0 or size >= 0.05:
        return f"{100 * value:.1f} %"
    return f"{100 * value:.1g} %" if size >= 1e-4 else f"{100 * value:.0e} %"


def criteria(
    paired: Paired,
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
        ("first_loss", "First loss", FIRST_ABS, FIRST_REL, "loss 1"),
        ("mean_loss", "Mean error of the loss", MEAN_ABS, MEAN_REL, "loss 2"),
    )
    return [
        Criterion(
            key=key,
            title=title,
            value="not logged",
            threshold=f"< {absolute(limit)} or < {percent(share)}",
            status=Met.UNDECIDED,
            decisive=True,
            origin=f"{_GUIDE}, {rule}",
            note="no loss was logged on both sides",
            numbers=(("threshold_abs", limit), ("threshold_rel", share)),
        )
        for key, title, limit, share, rule in lines
    ]


def _losses(paired: Paired) -> Losses | None:
    mine, first = paired.target.get(LOSS), paired.references.sides[0].get(LOSS)
    every = paired.references.stacked(LOSS)
    if mine is None or first is None or every is None:
        return None
    apart = paired.references.once("apart_abs", LOSS, lambda: _own_spread(every))
    return Losses(target=mine, reference=first, repeats=every, apart=apart)


def observed_steps(paired: Paired, target: Curve, *, frozen: bool = False) -> Criterion:
    """At least 1,000 steps; 5,000 or 12 hours unless a person chose fewer.

    Where no weight is updated every step is judged by itself: fewer leave less seen, not undecided.
    """
    first, last = int(paired.steps[0]), int(paired.steps[-1])
    observed = last - first + target.interval
    hours = target.hours
    enough = observed >= DEFAULT_STEPS or (hours is not None and hours >= DEFAULT_HOURS)
    note = "" if enough else f"fewer than the default of {DEFAULT_STEPS:,} steps or {DEFAULT_HOURS} h"
    status = Met.MET if observed >= FEWEST_STEPS or enough else Met.UNDECIDED
    if status is Met.UNDECIDED:
        note = f"fewer than {FEWEST_STEPS:,} steps are not recommended: too few to judge by"
    if status is Met.UNDECIDED and frozen:
        status = Met.WARNING
        note = f"no weight is updated: each step is judged by itself; the guide looks at {FEWEST_STEPS:,}"
    took = f", {hours:.1f} h" if hours is not None else ""
    return Criterion(
        key="steps",
        title="Steps observed without a break",
        value=f"{observed:,}{took}",
        threshold=f"≥ {FEWEST_STEPS:,} (default {DEFAULT_STEPS:,} or {DEFAULT_HOURS} h)",
        status=status,
        decisive=True,
        origin=f"{_GUIDE}, test standard 1",
        note=note,
        numbers=(("steps", float(observed)), ("hours", hours)),
    )


def repeats(references: Sequence[Curve]) -> Criterion:
    """At least two runs of the reference with determinism off."""
    num = len(references)
    same = [
        (a.name, b.name)
        for i, a in enumerate(references)
        for b in references[:i]
        if a.frame.height == b.frame.height
        and LOSS in a.frame.columns
        and a.frame[LOSS].equals(b.frame[LOSS])
    ]
    status = Met.MET if num >= FEWEST_REPEATS else Met.WARNING
    note = "" if status is Met.MET else "the reference's own fluctuation is not known: give repeats of it"
    if same:
        status = Met.WARNING
        note = (
            f"{same[0][0]} and {same[0][1]} are bit for bit the same: repeats are made with determinism off"
        )
    return Criterion(
        key="repeats",
        title="Repeats of the reference, determinism off",
        value=str(num),
        threshold=f"≥ {FEWEST_REPEATS}",
        status=status,
        decisive=False,
        origin=f"{_GUIDE}, test standard 4",
        note=note,
        numbers=(("repeats", float(num)),),
    )


def smooth(paired: Paired) -> Criterion:
    """The reference's loss should be smooth: a rough one hides differences, and feigns them."""
    value = paired.references.once(
        "roughness", LOSS, lambda: _roughness(paired.references.sides[0].get(LOSS))
    )
    rough = value > ROUGH
    return Criterion(
        key="smooth",
        title="Reference curve is smooth (change from step to step)",
        value=percent(value),
        threshold=f"≤ {percent(ROUGH)}",
        status=Met.WARNING if rough else Met.UNDECIDED if math.isnan(value) else Met.MET,
        decisive=False,
        origin=f"{_GUIDE}, test standard 3; the number is trueup's",
        note="a rough curve: prefer model, weights and settings whose loss fluctuates less" if rough else "",
        numbers=(("roughness", value),),
    )


def _roughness(loss: Floats | None) -> float:
    """Robust standard deviation of a curve around its neighbours, relative to it."""
    known = loss[np.isfinite(loss)] if loss is not None else np.zeros(0)
    if len(known) < 3:
        return math.nan
    steps = np.abs(np.diff(known)) / np.maximum(np.abs(known[1:]), 1e-30)
    return float(np.median(steps)) * 1.4826 / math.sqrt(2)


def first_loss(losses: Losses) -> Criterion:
    """Absolute error of the first loss below 0.005, or relative error below 0.5 %."""
    both = np.flatnonzero(np.isfinite(losses.target) | np.isfinite(losses.reference))
    at = int(both[0]) if len(both) else 0
    mine, theirs = float(losses.target[at]), float(losses.reference[at])
    apart = abs(mine - theirs)
    relative = apart / abs(theirs) if theirs else math.inf
    own = _own_spread(losses.repeats[:, at : at + 1])
    limit, relaxed = _relaxed(FIRST_ABS, own)
    met = apart < limit or relative < FIRST_REL
    return Criterion(
        key="first_loss",
        title="First loss",
        value=f"{absolute(apart)}, {percent(relative)}",
        threshold=f"< {absolute(limit)} or < {percent(FIRST_REL)}",
        status=Met.MET if met else Met.NOT_MET,
        decisive=True,
        origin=_origin("loss 1", relaxed, own),
        note=f"target {mine:.6g}, reference {theirs:.6g}",
        numbers=(("abs", apart), ("rel", relative), ("threshold_abs", limit), ("threshold_rel", FIRST_REL)),
    )


def mean_loss(losses: Losses) -> Criterion:
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
    note = f"{lost:,} steps have a loss in the reference alone" if lost else ""
    level = float(size.mean()) if len(size) else math.nan
    strict = mean_abs < MEAN_ABS or mean_rel < MEAN_REL
    too_wide = relaxed and met and not strict and own is not None and own > WIDEST * level
    if too_wide and own is not None:
        note = (
            f"the repeats are {absolute(own)} apart, {percent(own / level)} of the loss: test the original "
            "model before it is the measure"
        )
    return Criterion(
        key="mean_loss",
        title="Mean error of the loss",
        value=f"{absolute(mean_abs)}, {percent(mean_rel)}",
        threshold=f"< {absolute(limit)} or < {percent(MEAN_REL)}",
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


def global_norm(paired: Paired) -> list[Criterion]:
    """Mean relative error of the global gradient norm within 10 %: watched, does not reject by itself."""
    mine, theirs = paired.target.get(GRAD_NORM), paired.references.sides[0].get(GRAD_NORM)
    if mine is None or theirs is None:
        return []
    known = np.isfinite(mine) & np.isfinite(theirs) & (theirs != 0)
    if not known.any():
        return []
    value = float((np.abs(mine[known] - theirs[known]) / np.abs(theirs[known])).mean())
    stacked = paired.references.stacked(GRAD_NORM)
    own = paired.references.once("relative", GRAD_NORM, lambda: _relative_spread(stacked))
    limit, relaxed = _relaxed(NORM_REL, own)
    beyond = value > limit
    return [
        Criterion(
            key="global_norm",
            title="Global gradient norm, mean relative error",
            value=percent(value),
            threshold=f"≤ {percent(limit)}",
            status=Met.WARNING if beyond else Met.MET,
            decisive=False,
            origin=_origin("monitoring indicator", relaxed, own, relative=True),
            note="a monitoring indicator: does not reject by itself" if beyond else "",
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


def _origin(rule: str, relaxed: bool, own: float | None, *, relative: bool = False) -> str:
    if not relaxed or own is None:
        return f"{_GUIDE}, {rule}"
    said = percent(own) if relative else absolute(own)
    fluctuation = f"{said} between repeats, × {ALLOWANCE:g}"
    return f"{_GUIDE}, {rule}, relaxed to the reference's own fluctuation ({fluctuation})"
