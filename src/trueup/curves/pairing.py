"""The target and its references step by step, logged at any interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from trueup.curves.aligning import Alignment
from trueup.curves.columns import GRAD_NORM, LOSS, MEASURES, PART_LOSSES, STEP
from trueup.curves.curve import Curve
from trueup.errors import NothingCompared
from trueup.types.arrays import Array, Floats
from trueup.types.codes import CurvesCode
from trueup.types.reason import Reason, reason

_MEANS = (LOSS, GRAD_NORM, *PART_LOSSES)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSide:
    """One run's columns at the paired steps; missing numbers are NaN."""

    columns: dict[str, Floats]

    def get(self, column: str) -> Floats | None:
        """The column, or None where it was not logged."""
        return self.columns.get(column)


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The references at the paired steps, and what was worked out of them: the same for every target
    there."""

    steps: NDArray[np.int64]
    sides: tuple[CurveSide, ...]
    _known: dict[tuple[str, str], object] = field(default_factory=dict)

    def once(self, what: str, column: str, work: Callable[[], _Result]) -> _Result:
        """``work()``, done once."""
        key = what, column
        if key not in self._known:
            self._known[key] = work()
        return cast(_Result, self._known[key])

    def centre(self, column: str) -> Floats | None:
        """The mean of the references at every step."""
        return self.once("centre", column, lambda: self._centre(column))

    def stacked(self, column: str) -> Floats | None:
        """(references that logged it, S)."""
        known = [c for side in self.sides if (c := side.get(column)) is not None]
        return self.once("stacked", column, lambda: np.stack(known) if known else None)

    def _centre(self, column: str) -> Floats | None:
        stacked = self.stacked(column)
        if stacked is None or len(stacked) < 2:
            return None if stacked is None else stacked[0]
        there = ~np.isnan(stacked)
        if there.all():
            whole: Floats = stacked.mean(axis=0)
            return whole
        total, counts = np.where(there, stacked, 0).sum(axis=0), there.sum(axis=0)
        mean: Floats = np.divide(total, counts, out=np.full(len(total), np.nan), where=counts > 0)
        return mean


Shared = dict[tuple[int, ...], References]
"""References by first step, last step, number of steps and offsets"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedCurves:
    """Steps (S,), in the target's numbers, and what each run has there."""

    steps: NDArray[np.int64]
    target: CurveSide
    references: References
    notes: tuple[Reason, ...]


def pair(
    target: Curve,
    references: Sequence[Curve],
    alignments: Sequence[Alignment],
    shared: Shared | None = None,
) -> PairedCurves:
    """Bring all runs to common steps: those of the target, or of the run that was logged most coarsely.

    A log that prints the mean since its last line is compared with the mean of the other's same steps.
    ``shared`` keeps the references of other targets at the same steps.

    Raises:
        NothingCompared: the target has no step in common with the first reference.
    """
    grid, notes = _grid(target, references, alignments)
    if len(grid) == 0:
        first, other = target.span, references[0].span
        raise NothingCompared(
            f"no step in common: {target.name} has {first[0]} to {first[1]}, {references[0].name} "
            f"{other[0]} to "
            f"{other[1]}. Say how they are numbered with --offset"
        )
    coarse = _coarsest(target, references)
    key = int(grid[0]), int(grid[-1]), len(grid), *(a.offset for a in alignments)
    there = None if shared is None or coarse is target else shared.get(key)
    if there is None or not np.array_equal(there.steps, grid):
        sides = [
            _side(curve, grid, alignment.offset, coarse)
            for curve, alignment in zip(references, alignments, strict=True)
        ]
        there = References(steps=grid, sides=tuple(sides))
        if shared is not None and coarse is not target:
            shared[key] = there
    return PairedCurves(
        steps=grid, target=_side(target, grid, 0, coarse), references=there, notes=tuple(notes)
    )


def _coarsest(target: Curve, references: Sequence[Curve]) -> Curve | None:
    """The curve whose lines are means over several steps, where others have a line a step."""
    every = [target, *references]
    widest = max(every, key=lambda curve: curve.interval)
    return widest if widest.interval > min(c.interval for c in every) and widest.loss_is_mean else None


def _grid(
    target: Curve, references: Sequence[Curve], alignments: Sequence[Alignment]
) -> tuple[NDArray[np.int64], list[Reason]]:
    coarse = _coarsest(target, references)
    target_steps = target.frame[STEP].to_numpy()
    first = references[0].frame[STEP].to_numpy() + alignments[0].offset
    low, high = max(target_steps[0], first[0]), min(target_steps[-1], first[-1])
    if coarse is not None:
        offset = (
            0
            if coarse is target
            else next(a.offset for c, a in zip(references, alignments, strict=True) if c is coarse)
        )
        grid = coarse.frame[STEP].to_numpy() + offset
        grid = grid[(grid >= low) & (grid <= high)]
        note = reason(CurvesCode.COARSE, curve=coarse.name, interval=coarse.interval)
        return grid.astype(np.int64), [note]
    if len(target_steps) == len(first) and np.array_equal(target_steps, first):
        return target_steps.astype(np.int64), []
    return np.intersect1d(target_steps, first, assume_unique=True).astype(np.int64), []


def _side(curve: Curve, grid: NDArray[np.int64], offset: int, coarse: Curve | None) -> CurveSide:
    steps = curve.frame[STEP].to_numpy() + offset
    exact = len(steps) == len(grid) and np.array_equal(steps, grid)
    at = np.arange(len(grid)) if exact else np.clip(np.searchsorted(steps, grid), 0, len(steps) - 1)
    there = None if exact else steps[at] == grid
    columns: dict[str, Floats] = {}
    for name in MEASURES:
        values = curve.values(name)
        if values is None:
            continue
        values = _within_float32(values)
        if coarse is not None and coarse is not curve and name in _MEANS and curve.interval < coarse.interval:
            columns[name] = _means(steps, values, grid, coarse.interval)
        else:
            columns[name] = values if there is None else np.where(there, values[at], np.nan)
    return CurveSide(columns=columns)


def _within_float32(values: Floats) -> Floats:
    """The same, infinite beyond what float32 holds: no training computes such a loss; squares overflow."""
    largest = float(np.finfo(np.float32).max)
    with np.errstate(invalid="ignore"):
        beyond = np.abs(values) > largest
    return np.where(beyond, np.copysign(np.inf, values), values) if beyond.any() else values


def _means(steps: Array, values: Floats, grid: NDArray[np.int64], interval: int) -> Floats:
    """The mean over the ``interval`` steps that end at each step of the grid; NaN where not all are there."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.searchsorted(steps, grid, side="right")
    begins = np.searchsorted(steps, grid - interval, side="right")
    whole = ends - begins == max(
        1, interval // max(1, int(np.median(np.diff(steps))) if len(steps) > 1 else 1)
    )
    count = np.maximum(ends - begins, 1)
    found: Floats = np.where(whole, (total[ends] - total[begins]) / count, np.nan)
    return found
