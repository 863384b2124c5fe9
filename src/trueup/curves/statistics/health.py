"""What is wrong with a curve by itself: NaN, overflow, no progress; and learning rates that were not the
same."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.curves.statistics.noise import memory, outliers, two_sided
from trueup.curves.thresholds import (
    LATE_LEVEL,
    PLATEAU_FEWEST,
    PROGRESS,
    RATES_APART,
    RATES_SMALL,
    SCALE_DROP,
    STALL_FEWEST,
)
from trueup.types.arrays import Floats

_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """One run."""

    not_finite: tuple[int, ...]
    """steps with a loss or gradient norm that is NaN or infinite, the first 20"""
    num_not_finite: int
    overflow_steps: tuple[int, ...]
    """steps at which the loss scale fell or the update was left out, the first 20"""
    num_overflow_steps: int
    plateau_from: int | None
    """step from which its loss no longer falls while the other's does"""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The learning rates as both runs logged them."""

    max_rel_diff: float
    first_different: int | None
    all_zero: bool

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def not_finite(values: Floats | None, logged: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Where a number was logged and is NaN or infinite."""
    if values is None:
        return np.zeros(0, bool)
    bad = ~np.isfinite(values)
    return bad if logged is None else bad & logged


def overflows(loss_scale: Floats | None, skipped: Floats | None) -> NDArray[np.bool_]:
    """Steps at which the loss scale is lower than the step before, or the update was left out."""
    num = max(0 if c is None else len(c) for c in (loss_scale, skipped))
    found = np.zeros(num, bool)
    if loss_scale is not None and num > 1:
        with np.errstate(invalid="ignore"):
            found[1:] |= loss_scale[1:] < SCALE_DROP * loss_scale[:-1]
    if skipped is not None:
        found |= np.nan_to_num(skipped) > 0
    return found


def health(
    *,
    steps: NDArray[np.int64],
    bad: NDArray[np.bool_],
    overflow: NDArray[np.bool_],
    plateau_from: int | None,
) -> Health:
    """Put together what was found."""
    return Health(
        not_finite=tuple(steps[bad][:_LISTED].tolist()),
        num_not_finite=int(bad.sum()),
        overflow_steps=tuple(steps[: len(overflow)][overflow][:_LISTED].tolist()),
        num_overflow_steps=int(overflow.sum()),
        plateau_from=plateau_from,
    )


def plateau(loss: Floats, other: Floats, steps: NDArray[np.int64]) -> int | None:
    """The step from which a loss falls no more although the other run's does; None where it is not so.

    Looked for in the last three quarters of the steps, by quarters: the slope is not below zero by more than
    its noise, while the other loses at least a hundredth of its loss.
    """
    num = len(loss)
    if num < PLATEAU_FEWEST:
        return None
    begins = [num * q // 8 for q in range(1, 7)]
    for begin in begins:
        if _falls(other[begin:]) and _stalls(loss[begin:]):
            return int(steps[begin])
    return None


def _falls(values: Floats) -> bool:
    num = max(10, len(values) // 10)
    first, last = (part[np.isfinite(part)] for part in (values[:num], values[-num:]))
    return bool(len(first) and len(last) and last.mean() < (1 - PROGRESS) * first.mean())


def _stalls(values: Floats) -> bool:
    """Whether the loss falls by less than a quarter of a hundredth, and no more than its noise explains."""
    known = np.isfinite(values)
    if known.sum() < STALL_FEWEST or _falls(values):
        return False
    good = ~outliers(values)
    x = np.arange(len(values), dtype=float)
    x -= x[good].mean()
    spread = float(x[good] @ x[good])
    slope = float(x[good] @ (values[good] - values[good].mean())) / spread
    lost = -slope * len(values) / max(abs(float(values[good].mean())), 1e-30)
    if lost >= PROGRESS / 4:
        return False
    rest = memory(values - slope * x, good)
    sure = (
        rest.long_run_variance > 0
        and two_sided(slope / (rest.long_run_variance / spread) ** 0.5) < LATE_LEVEL
    )
    return not (sure and lost > PROGRESS / 8)


def rates(target: Floats | None, reference: Floats | None, steps: NDArray[np.int64]) -> Rates | None:
    """Compare learning rates as logged; a thousandth apart, they are another's, for logs round."""
    if target is None or reference is None:
        return None
    known = np.isfinite(target) & np.isfinite(reference)
    if not known.any():
        return None
    a, b, at = target[known], reference[known], steps[known]
    largest = max(float(np.abs(b).max()), float(np.abs(a).max()))
    size = np.maximum(np.abs(b), RATES_SMALL * largest)
    apart = np.abs(a - b) / np.where(size > 0, size, 1)
    different = np.flatnonzero(apart > RATES_APART)
    return Rates(
        max_rel_diff=float(apart.max()),
        first_different=int(at[different[0]]) if len(different) else None,
        all_zero=largest == 0.0,
    )
