"""Steps at which a curve leaps up."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.curves.thresholds import SPIKE_BEHIND, SPIKE_BESIDE, SPIKE_SIGMAS, SPIKE_WINDOW
from trueup.types.arrays import Array, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Spikes:
    """Spikes of both sides, by step."""

    both: tuple[int, ...]
    target_only: tuple[int, ...]
    reference_only: tuple[int, ...]
    largest: float | None
    """how high the largest of the target alone stands, in sigmas"""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def heights(values: Floats) -> Floats:
    """How many standard deviations each step stands above the 128 steps before it.

    Steps that stood above six do not count among those; a curve's first 16 steps are never spikes.
    """
    known = np.isfinite(values)
    first = _heights(values, known)
    tall = first > SPIKE_SIGMAS
    return _heights(values, known & ~tall) if tall.any() else first


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def _heights(values: Floats, counted: NDArray[np.bool_]) -> Floats:
    """Losses beyond 1e154 have no square in float64: no height either."""
    shift = float(values[counted].mean()) if counted.any() else 0.0
    apart = values - shift
    x = np.where(counted, apart, 0.0)
    number, total, squares = (_behind(part) for part in (counted, x, x * x))
    enough = number >= SPIKE_BEHIND
    np.maximum(number, 1, out=number)
    mean = np.divide(total, number, out=total)
    variance = np.divide(squares, number, out=squares)
    variance -= mean * mean
    deviation = np.sqrt(np.maximum(variance, 0, out=variance), out=variance)
    found = (apart - mean) / deviation
    found[~(enough & (deviation > 0)) | np.isnan(found)] = 0.0
    found[np.isposinf(values)] = np.inf
    return found


def _behind(values: Array) -> Floats:
    """The sum over the 128 steps before each."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    found: Floats = sums[:-1].copy()
    found[SPIKE_WINDOW:] -= sums[: max(0, len(found) - SPIKE_WINDOW)]
    return found


def spikes(target: Floats, reference: Floats, steps: NDArray[np.int64]) -> Spikes:
    """Spikes of target and reference by their :func:`heights`, and which are in both: those are the
    data's."""
    target_begins, others = _begins(target), _begins(reference)
    matched = _near(target_begins, others)
    only_target = target_begins[~matched]
    tallest = target[only_target]
    return Spikes(
        both=tuple(steps[target_begins[matched]].tolist()),
        target_only=tuple(steps[only_target].tolist()),
        reference_only=tuple(steps[others[~_near(others, target_begins)]].tolist()),
        largest=float(tallest.max()) if len(tallest) else None,
    )


def _begins(height: Floats) -> NDArray[np.int64]:
    """Where spikes begin: steps above six sigmas close to each other are one; an infinite loss is none."""
    above = np.flatnonzero((height > SPIKE_SIGMAS) & np.isfinite(height))
    return above[np.concatenate([[True], np.diff(above) > SPIKE_BESIDE + 1])] if len(above) else above


def _near(these: NDArray[np.int64], those: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(those):
        return np.zeros(len(these), bool)
    at = np.searchsorted(those, these)
    after = np.abs(those[np.minimum(at, len(those) - 1)] - these)
    before = np.abs(those[np.maximum(at - 1, 0)] - these)
    near: NDArray[np.bool_] = np.minimum(after, before) <= SPIKE_BESIDE
    return near
