"""What is wrong with a curve by itself: NaN, overflow, no progress; and learning rates that were not the
same."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.curves.statistics.envelope import moving_mean
from trueup.curves.thresholds import (
    CONVERGED,
    PLATEAU_FEWEST,
    PLATEAU_SHARE,
    PROGRESS,
    RATES_APART,
    RATES_SMALL,
    SCALE_DROP,
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
    plateau_level: float | None = None
    """its mean loss from there on"""
    fell: float | None = None
    """how far its loss fell before"""
    broke_as: tuple[str, str] | None = None
    """the column that is not finite first, and what it is: NaN or infinite"""
    finite_again: int | None = None
    """step at which that column is finite again, None where it stays as it is"""

    def to_json(self) -> dict[str, object]:
        """Plain values; ``finite_again`` where there is such a step."""
        plain = asdict(self)
        return (
            plain
            if self.finite_again is not None
            else {k: v for k, v in plain.items() if k != "finite_again"}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """Where a loss stopped falling."""

    step: int
    level: float
    fell: float


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
    plateau: Plateau | None = None,
    broke_as: tuple[str, str] | None = None,
    finite_again: int | None = None,
) -> Health:
    """Put together what was found."""
    return Health(
        not_finite=tuple(steps[bad][:_LISTED].tolist()),
        num_not_finite=int(bad.sum()),
        overflow_steps=tuple(steps[: len(overflow)][overflow][:_LISTED].tolist()),
        num_overflow_steps=int(overflow.sum()),
        plateau_from=None if plateau is None else plateau.step,
        plateau_level=None if plateau is None else plateau.level,
        fell=None if plateau is None else plateau.fell,
        broke_as=broke_as,
        finite_again=finite_again,
    )


def plateaus(
    target: Floats, reference: Floats, steps: NDArray[np.int64]
) -> tuple[Plateau | None, Plateau | None]:
    """Where either loss, the target's and the reference's, stops falling although the other's goes on."""
    num, losses = len(target), (target, reference)
    known = np.isfinite(target) & np.isfinite(reference)
    if known.sum() < PLATEAU_FEWEST:
        return None, None
    where, window = np.arange(num), max(8, num // 50)
    complete = losses if known.all() else [np.interp(where, where[known], loss[known]) for loss in losses]
    first, second = (moving_median(loss, window) for loss in complete)
    return _plateau(first, second, steps), _plateau(second, first, steps)


def _plateau(target: Floats, reference: Floats, steps: NDArray[np.int64]) -> Plateau | None:
    """Where an averaged loss stops falling although the other run's goes on; None where it is not so.

    From the step found on the loss, averaged over a fiftieth of the steps, falls by less than a
    hundredth, and by less than a quarter of what the other run loses, which is more than a hundredth.
    A loss that has fallen and risen again by more than a hundredth has not stopped falling: it has diverged.
    """
    num = len(target)
    begins = np.arange(0, num - num // 4, max(1, num // 200))
    lowest = np.minimum.accumulate(target[::-1])[::-1]
    lost, others = target[begins] - lowest[begins], reference[begins] - reference[-1]
    stalled = (others > PROGRESS * np.abs(reference[begins])) & (lost < PLATEAU_SHARE * others)
    stalled &= lost < PROGRESS * np.abs(target[begins])
    stalled &= (target[-1] > reference[-1]) & (target[-1] - target[begins] < PLATEAU_SHARE * others)
    deepest = np.minimum.accumulate(target)[begins]
    never_fell = target[0] - deepest < CONVERGED * (reference[0] - reference[-1])
    stalled &= never_fell | (target[begins] - deepest < PROGRESS * np.abs(target[begins]))
    if not stalled.any():
        return None
    at = int(begins[np.flatnonzero(stalled)[0]])
    return Plateau(step=int(steps[at]), level=float(target[at:].mean()), fell=float(target[0] - target[at]))


def moving_median(values: Floats, window: int) -> Floats:
    """Averages that a spike does not move: medians of three averages over a third of the window each."""
    part = max(1, window // 3)
    mean = moving_mean(values, part)
    parts = np.stack([np.roll(mean, -part), mean, np.roll(mean, part)])
    parts[0, len(values) - part :], parts[2, :part] = mean[len(values) - part :], mean[:part]
    low, high = np.minimum(parts[0], parts[1]), np.maximum(parts[0], parts[1])
    found: Floats = np.maximum(low, np.minimum(high, parts[2]))
    return found


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
