"""The room the reference's own repeats take up, and when the target first leaves it for good."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.curves.thresholds import BAND_SHARE, BAND_SIGMAS, BAND_STEPS
from trueup.types.arrays import Array, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """How far the target may be from the references' mean at every step, both (S,)."""

    half_width: Floats
    origin: str
    """``repeats`` or ``standard``"""
    window: int
    """steps the difference is averaged over before it is held against ``half_width``"""
    smoothed: Floats
    """that average of the difference"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What the band says of the target."""

    origin: str
    num_repeats: int
    inside: float | None
    """share of steps between the smallest and the largest of the repeats; null below two of them"""
    expected_inside: float | None
    """of one more repeat: (k - 1) / (k + 1)"""
    largest_apart: float | None
    """largest mean |difference| between two repeats"""
    largest_offset: float | None
    """largest |mean difference| between two repeats"""
    first_exceedance: int | None
    """first step outside from which on the average stays outside until the end"""
    share_outside: float
    """of the steps whose average is outside the band"""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def window_of(num: int) -> int:
    """Steps a difference is averaged over before it is held against the band."""
    return max(BAND_STEPS, int(num * BAND_SHARE))


def band_spread(repeats: Floats, centre: Floats) -> Floats | None:
    """Half width (S,) of the band of the repeats (k, S); None of one alone.

    Four times the spread of the repeats' averages over the window, times sqrt(1 + 1/k) for their centre is
    known no better.
    """
    num, k = len(centre), len(repeats)
    if k < 2:
        return None
    window = window_of(num)
    apart = np.stack([moving_mean(one - centre, window) for one in repeats])
    variance = np.mean(np.nan_to_num(apart) ** 2, axis=0) * k / (k - 1)
    smooth = np.sqrt(np.maximum(moving_mean(variance, min(num, 10 * window)), 0))
    half: Floats = BAND_SIGMAS * math.sqrt(1 + 1 / k) * smooth
    return half


def band(
    difference: Floats, centre: Floats, spread: Floats | None, *, floor_abs: float, floor_rel: float
) -> Band:
    """The band of the repeats, never narrower than the standard's own thresholds.

    ``spread``: of :func:`band_spread`.
    """
    window = window_of(len(difference))
    floor = np.maximum(floor_abs, floor_rel * np.abs(np.nan_to_num(centre)))
    smoothed = moving_mean(difference, window)
    if spread is None:
        return Band(half_width=floor, origin="standard", window=window, smoothed=smoothed)
    return Band(
        half_width=np.maximum(spread, floor),
        origin="repeats" if float(np.mean(spread)) > float(np.mean(floor)) else "standard",
        window=window,
        smoothed=smoothed,
    )


def envelope(
    target: Floats,
    repeats: Floats,
    found: Band,
    steps: NDArray[np.int64],
    distances: tuple[float | None, float | None],
) -> Envelope:
    """Judge the target by the band. ``distances``: of :func:`repeat_distances`."""
    outside = np.abs(found.smoothed) > found.half_width
    inside, expected = None, None
    if len(repeats) > 1:
        known = np.isfinite(target) & np.isfinite(repeats).all(axis=0)
        low, high = repeats.min(axis=0), repeats.max(axis=0)
        within = (target >= low) & (target <= high) & known
        inside = float(within.sum() / known.sum()) if known.any() else None
        expected = (len(repeats) - 1) / (len(repeats) + 1)
    apart, offset = distances
    return Envelope(
        origin=found.origin,
        num_repeats=len(repeats),
        inside=inside,
        expected_inside=expected,
        largest_apart=apart,
        largest_offset=offset,
        first_exceedance=_for_good(target - repeats_centre(repeats), found, steps),
        share_outside=float(outside.mean()) if len(outside) else 0.0,
    )


def repeats_centre(repeats: Floats) -> Floats:
    """Mean of the repeats (k, S) that have a number, (S,)."""
    known = np.isfinite(repeats)
    total, count = np.where(known, repeats, 0.0).sum(axis=0), known.sum(axis=0)
    mean: Floats = np.divide(total, count, out=np.full(repeats.shape[1], np.nan), where=count > 0)
    return mean


def repeat_distances(repeats: Floats) -> tuple[float | None, float | None]:
    """Largest mean |difference| and largest |mean difference| between two of the repeats."""
    apart: list[float] = []
    offset: list[float] = []
    for i in range(len(repeats)):
        for j in range(i):
            gap = repeats[i] - repeats[j]
            gap = gap[np.isfinite(gap)]
            if len(gap):
                apart.append(float(np.abs(gap).mean()))
                offset.append(abs(float(gap.mean())))
    return max(apart, default=None), max(offset, default=None)


def moving_mean(values: Floats, window: int) -> Floats:
    """The centred mean over ``window`` steps, fewer at the ends; steps that are not finite do not count."""
    known = np.isfinite(values)
    if known.all():
        number = _over(np.arange(len(values) + 1), window)
        every: Floats = _over(_summed(values), window) / number
        return every
    number = _over(_summed(known), window)
    total = _over(_summed(np.where(known, values, 0.0)), window)
    mean: Floats = np.divide(total, number, out=np.full(len(values), np.nan), where=number > 0)
    return mean


def _summed(values: Array) -> Floats:
    """Sums (S + 1,) over the first so many."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def _over(sums: Array, window: int) -> Floats:
    """The sum over the steps around each, out of the sums from the first step."""
    num, before, after = len(sums) - 1, window // 2, window - window // 2
    ends = np.full(num, sums[-1], np.float64)
    ends[: max(0, num - after)] = sums[after:num]
    ends[before:] -= sums[: max(0, num - before)]
    return ends


def mean_around(values: Floats, at: int, window: int) -> float:
    """What :func:`moving_mean` has at one step."""
    part = values[max(at - window // 2, 0) : at + window - window // 2]
    known = part[np.isfinite(part)]
    return float(known.mean()) if len(known) else math.nan


def _for_good(difference: Floats, found: Band, steps: NDArray[np.int64]) -> int | None:
    """The first step outside the band after which the average over the window does not come back.

    An average sees what comes after: of the first window the first step that is outside by itself counts.
    """
    known = np.flatnonzero(np.isfinite(found.smoothed))
    if not len(known):
        return None
    size = np.abs(found.smoothed[known])
    inside = np.flatnonzero(size <= found.half_width[known])
    begin = int(inside[-1]) + 1 if len(inside) else 0
    if len(known) - begin < min(found.window, len(known)):
        return None
    ahead = known[begin : begin + found.window]
    out = np.flatnonzero(np.abs(np.nan_to_num(difference[ahead])) > found.half_width[ahead])
    return int(steps[ahead[int(out[0]) if len(out) else 0]])
