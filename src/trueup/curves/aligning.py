"""Which step of one log is which step of another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueup.curves.columns import GRAD_NORM, LOSS, STEP
from trueup.curves.curve import Curve
from trueup.curves.thresholds import (
    ALIGN_APART,
    ALIGN_APART_ERRORS,
    ALIGN_ERRORS,
    ALIGN_FEWEST,
    ALIGN_ONLY_PEAK,
    ALIGN_OTHERS,
    CHANGES_LEAST,
    UNRELATED,
)
from trueup.types.arrays import Array, Floats
from trueup.types.codes import CurvesCode as Curves
from trueup.types.reason import Reason, reason

MAX_OFFSET = 8
"""Offsets tried around none at all, and around first step to first step."""
_LOOKED_AT = 2048
"""Lines the correlation is taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Step ``s`` of the target is step ``s - offset`` of the reference."""

    offset: int
    basis: str
    """``given``, ``found`` (the curves' step-to-step changes tell) or ``assumed``"""
    correlation: float | None
    """of the changes from step to step, at this offset; where it is assumed, the largest at any"""
    runner_up: float | None
    """the next best offset's"""

    @property
    def reason(self) -> Reason:
        """How the steps are paired, and what that rests on."""
        return reason(
            Curves.STEPS_SHIFTED if self.offset else Curves.STEPS_ALIKE,
            offset=self.offset,
            basis="unrelated" if self._is_unrelated else self.basis,
            correlation=self.correlation,
            runner_up=self.runner_up,
        )

    @property
    def _is_unrelated(self) -> bool:
        known = self.correlation is not None and self.correlation <= UNRELATED
        return self.basis == "assumed" and known

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "offset": self.offset,
            "basis": self.basis,
            "correlation": self.correlation,
            "runner_up": self.runner_up,
            "sentence": self.reason,
        }


def align(target: Curve, reference: Curve, *, offset: int | None = None) -> Alignment:
    """Find how the two logs number the same step.

    The step-to-step changes of the loss are mostly the data's, so at the right offset two runs over the same
    data correlate. Where they do not, steps are taken as numbered alike, or first to first where one log
    counts from 0 and the other from 1, or where they have no step in common.
    """
    if offset is not None:
        return Alignment(offset=offset, basis="given", correlation=None, runner_up=None)
    first = target.span[0] - reference.span[0]
    apart = target.span[0] > reference.span[1] or reference.span[0] > target.span[1]
    usual = first if apart or abs(first) == 1 else 0
    begins = _begins(target, reference, first if apart else 0)
    offsets = _offsets(target, reference, first)
    found: dict[int, tuple[float, int]] = {}
    for each in sorted(offsets, key=lambda o: abs(o - usual)) if begins is not None else []:
        assert begins is not None
        there = _correlation(*begins, each)
        if there is not None:
            found[each] = there
        if len(found) > 2 and _is_only_peak([r for r, _ in found.values()]):
            break
    if not found:
        return Alignment(offset=usual, basis="assumed", correlation=None, runner_up=None)
    best = max(found, key=lambda o: found[o][0])
    value, num = found[best]
    others = [r for o, (r, _) in found.items() if o != best]
    runner_up = max(others, default=None)
    if _is_found(value, max(0.0, runner_up or 0.0), num):
        return Alignment(offset=best, basis="found", correlation=value, runner_up=runner_up)
    return Alignment(offset=usual, basis="assumed", correlation=value, runner_up=runner_up)


def _is_found(value: float, runner_up: float, num: int) -> bool:
    """Whether a correlation over ``num`` changes is more than chance, and clearly the best."""
    error = 1 / np.sqrt(num)
    return bool(
        value > ALIGN_ERRORS * error and value - runner_up > max(ALIGN_APART, ALIGN_APART_ERRORS * error)
    )


def _offsets(target: Curve, reference: Curve, first: int) -> list[int]:
    unit = max(target.interval, reference.interval)
    near = [k * unit for k in range(-MAX_OFFSET, MAX_OFFSET + 1)]
    if unit > 1:
        near += [-1, 1]
    return sorted({*near, *(first + k for k in near), first})


def _is_only_peak(values: list[float]) -> bool:
    """One correlation near 1 among small ones: no other offset can be as good."""
    ordered = sorted(values)
    return ordered[-1] > ALIGN_ONLY_PEAK and ordered[-2] < ALIGN_OTHERS


_Part = tuple[Array, Floats]


def _begins(target: Curve, reference: Curve, offset: int) -> tuple[_Part, _Part] | None:
    """Steps and losses (or gradient norms) of either, from where both have begun."""
    both = {LOSS, GRAD_NORM} & set(target.frame.columns) & set(reference.frame.columns)
    if not both:
        return None
    column = LOSS if LOSS in both else GRAD_NORM
    begin = max(target.span[0], reference.span[0] + offset)
    parts = []
    for curve, first in ((target, begin - MAX_OFFSET), (reference, begin - offset - MAX_OFFSET)):
        steps = curve.frame[STEP].to_numpy()
        at = int(np.searchsorted(steps, first))
        values = curve.frame[column].slice(at, _LOOKED_AT).cast(float).fill_null(float("nan"))
        known = values.to_numpy()
        known = np.where(np.isfinite(known), known, np.nan)
        parts.append((steps[at : at + _LOOKED_AT], known))
    return parts[0], parts[1]


def _correlation(target: _Part, reference: _Part, offset: int) -> tuple[float, int] | None:
    """Pearson's, of the changes from one common step to the next, and over how many."""
    steps = reference[0] + offset
    at = np.searchsorted(steps, target[0])
    at[at == len(steps)] = 0
    common = steps[at] == target[0] if len(steps) else np.zeros(len(target[0]), bool)
    x, y = np.diff(target[1][common]), np.diff(reference[1][at[common]])
    good = np.isfinite(x) & np.isfinite(y)
    if good.sum() < ALIGN_FEWEST:
        return None
    x, y = _ranked(x[good]), _ranked(y[good])
    with np.errstate(over="ignore", invalid="ignore"):  # numbers near the largest: nothing is known
        size = float(np.sqrt((x @ x) * (y @ y)))
        rounding = float(len(x) * np.square(CHANGES_LEAST * np.nanmax(np.abs(target[1]))))
    return (float(x @ y) / size, int(good.sum())) if size > rounding else None


def _ranked(values: Floats) -> Floats:
    """Clipped at a few spreads, so that one spike does not decide, and centred."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    clipped: Floats = np.clip(values, middle - 2 * (middle - low), middle + 2 * (high - middle))
    centred: Floats = clipped - clipped.mean()
    return centred
