"""One departure by itself: what begins at a place and grows by one law, fitted under AR(1) noise.

The model is ``d[t] = m + b [t >= t0] + a f((t - t0 + 1) / L) + n[t]``; ``a`` and ``b`` of one
sign, or ``b = 0``.
Every law ``f``, length and place is fitted by generalised least squares; a place is as likely as all of its
laws together, integrated over level and heights (flat up to the height that is reached).

What can be known: the place of a blow-up ``a (exp(u / L) - 1)`` is told by the level that it left, which some
``L`` steps tell: to a few times ``sqrt(L)`` steps times noise over ``a``. What begins far below the noise
has no beginning that anybody could see; what is named then is where it stands out (``BEND_SEEN``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trueup.curves.statistics.noise import memory
from trueup.curves.thresholds import BEND_SEEN
from trueup.types.arrays import Bools, Floats

_POWERS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
_BLOCKS, _ROUNDS, _LENGTHS = 1000, 3, 24
_SHORTEST, _LONGEST = 2.0, 3.0
"""steps, and times the steps looked at"""
_STEEPEST = 12.0
"""a blow-up by exp(12), from below its noise, is beyond what is looked at"""
_UNLIKELY = 10.0
"""logarithm of odds: a length that is less likely than the law's best by more is looked at no further"""
_PARAMETERS = 4
_NOTHING = 1e-300
Law = Callable[[Floats], Floats]


def _power(power: float) -> Law:
    return lambda u: u**power


_SCALELESS: tuple[Law, ...] = (lambda u: (u > 0).astype(np.float64), *map(_power, _POWERS))
"""the first is the leap"""
_LONG: tuple[Law, ...] = (
    lambda u: -np.expm1(-u),
    lambda u: np.minimum(u, 1.0),
    lambda u: np.expm1(np.minimum(u, _STEEPEST)),
)
"""with a length; the last blows up"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """AR(1)."""

    coefficient: float
    variance: float
    """of what is new at each step"""

    @property
    def scale(self) -> float:
        """Standard deviation of a step."""
        return math.sqrt(self.variance / (1 - self.coefficient**2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bend:
    """Where a departure begins: index of its first step."""

    index: int
    """as likely too early as too late"""
    earliest: int
    latest: int
    """each passed with a chance of one in twenty"""
    misfit: float
    """by how many of its errors the best law misses chi square, over all steps or those after the place"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """What is new at each step, as means over blocks of ``width`` steps; the first begins at ``base``."""

    means: Floats
    width: int
    base: int
    noise: Noise

    @property
    def variance(self) -> float:
        """Of a mean."""
        return self.noise.variance / self.width

    @property
    def after(self) -> Floats:
        """Steps since a departure that begins with the first block."""
        steps: Floats = (np.arange(len(self.means), dtype=np.float64) + 0.5) * self.width + 0.5
        return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Laws:
    """Every law (S, N) from the first block on: its height, and what is new of it at each step."""

    heights: Floats
    shapes: Floats
    grown: Floats
    """(S,) of a height of 1 at the end, how high it is when it has grown by e: 1 of what does not blow up"""
    steepest: Floats
    """(S,) steps over which a law is followed"""
    log_prior: Floats
    """(S,)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fits:
    """Of every law and place (S, P), without a leap and with one."""

    logs: tuple[Floats, Floats]
    """logarithm of the likelihood, integrated over level and heights"""
    explained: tuple[Floats, Floats]
    growths: tuple[Floats, Floats]
    leaps: tuple[Floats, Floats]


def noise_of(values: Floats) -> Noise:
    """Of steps without a trend."""
    coefficient = min(max(memory(values, np.ones(len(values), bool)).coefficient, 0.0), 0.99)
    rest = values[1:] - coefficient * values[:-1]
    return Noise(
        coefficient=coefficient,
        variance=max(float(np.var(rest)) * len(rest) / max(1, len(rest) - 2), _NOTHING),
    )


def bend(values: Floats, noise: Noise, *, begin: int, end: int, first: int, last: int) -> Bend:
    """Fit the steps from ``begin`` to ``end``; places from ``first`` to ``last``."""
    blocks = _whitened(values[begin:end], begin, noise)
    low = max(1, -(-(first - blocks.base) // blocks.width))
    high = max(low, min(len(blocks.means) - 2, (last - blocks.base) // blocks.width))
    reached = abs(float(np.mean(values[end - 4 : end]) - np.mean(values[begin:first]))) + noise.scale
    lengths = np.tile(np.geomspace(_SHORTEST, _LONGEST * (end - begin), _LENGTHS), (len(_LONG), 1))
    for at in range(_ROUNDS):
        laws = _laws(blocks, lengths)
        fits = _fits(blocks, laws, slice(low, high + 1), reached)
        logs = np.logaddexp(*fits.logs) + laws.log_prior[:, None]
        if at < _ROUNDS - 1:
            lengths = _finer(lengths, logs[len(_SCALELESS) :].max(axis=1).reshape(lengths.shape))
    law, place = np.unravel_index(logs.argmax(), logs.shape)
    with_leap = int(fits.logs[1][law, place] > fits.logs[0][law, place])
    explained, growth, leap = (
        float(one[with_leap][law, place]) for one in (fits.explained, fits.growths, fits.leaps)
    )
    squares = float(np.var(blocks.means)) * len(blocks.means)
    excess = max(1.0, (squares - explained) / blocks.variance / max(1, len(blocks.means) - _PARAMETERS))
    share = np.cumsum(np.exp((logs - logs.max()) / excess).sum(axis=0))
    earliest, index, latest = (
        blocks.base + (low + int(np.searchsorted(share, part * share[-1]))) * blocks.width
        for part in (0.05, 0.5, 0.95)
    )
    shape = growth * laws.shapes[law] + leap * laws.shapes[0]
    return Bend(
        index=index, earliest=earliest, latest=latest, misfit=_misfit(blocks, shape, low + int(place))
    )


def _whitened(values: Floats, begin: int, noise: Noise) -> _Blocks:
    white = values[1:] - noise.coefficient * values[:-1]
    width = max(1, len(white) // _BLOCKS)
    skipped = len(white) % width
    return _Blocks(
        means=white[skipped:].reshape(-1, width).mean(axis=1),
        width=width,
        base=begin + 1 + skipped,
        noise=noise,
    )


def _laws(blocks: _Blocks, lengths: Floats) -> _Laws:
    after = blocks.after
    before = np.maximum(after - 1, 0)
    heights = np.concatenate(
        [np.stack([law(after) for law in _SCALELESS])]
        + [law(after / own[:, None]) for law, own in zip(_LONG, lengths, strict=True)]
    )
    last = np.concatenate(
        [np.stack([law(before) for law in _SCALELESS])]
        + [law(before / own[:, None]) for law, own in zip(_LONG, lengths, strict=True)]
    )
    top = heights.max(axis=1)
    grown, steepest = np.ones(len(heights)), np.full(len(heights), np.inf)
    blown = slice(len(heights) - lengths.shape[1], None)
    grown[blown], steepest[blown] = math.expm1(1) / top[blown], _STEEPEST * lengths[-1]
    apart = np.log(lengths[:, -1] / lengths[:, 0]) / (lengths.shape[1] - 1)
    return _Laws(
        heights=heights / top[:, None],
        shapes=(heights - blocks.noise.coefficient * last) / top[:, None],
        grown=grown,
        steepest=steepest,
        log_prior=np.concatenate(
            [
                np.full(len(_SCALELESS), -math.log(len(_SCALELESS))),
                np.repeat(np.log(np.maximum(apart, _NOTHING)), lengths.shape[1]),
            ]
        ),
    )


def _fits(blocks: _Blocks, laws: _Laws, places: slice, reached: float) -> _Fits:
    y, num, variance = blocks.means - blocks.means.mean(), len(blocks.means), blocks.variance
    size = _smooth(2 * num)
    # from a place on, a law is the same moved by as many blocks: all places are one correlation
    product = np.fft.irfft(np.conj(np.fft.rfft(laws.shapes, size)) * np.fft.rfft(y, size), size)[:, :num][
        :, places
    ]
    total = np.cumsum(laws.shapes, axis=1)[:, ::-1][:, places]
    square = np.cumsum(laws.shapes**2, axis=1)[:, ::-1][:, places]
    both = np.cumsum(laws.shapes[0] * laws.shapes, axis=1)[:, ::-1][:, places] - total[0] * total / num
    spread = np.maximum(square - total**2 / num, _NOTHING)
    end = np.maximum(np.abs(laws.heights[:, ::-1][:, places]), 1e-150)
    single = product / spread
    explained = single * product
    logs = explained / (2 * variance) - 0.5 * np.log(spread / end**2)
    apart = np.maximum(spread * spread[0] - both**2, 1e-9 * spread * spread[0] + _NOTHING)
    growth = (product * spread[0] - product[0] * both) / apart
    leap = (product[0] * spread - product * both) / apart
    explained_with = growth * product + leap * product[0]
    logs_with = explained_with / (2 * variance) - 0.5 * np.log(spread / end**2)
    logs_with += 0.5 * np.log(2 * math.pi * variance * spread / apart) - math.log(reached)
    grown = laws.grown[:, None]
    followed = blocks.after[::-1][places] <= laws.steepest[:, None]
    scale = blocks.noise.scale
    seen = _is_seen(np.abs(single) * grown, scale) | (grown == 1)
    seen_with = _is_seen(np.abs(growth) * grown + np.abs(leap), scale) & (growth * leap > 0)
    seen_with[0] = False
    return _Fits(
        logs=(np.where(seen & followed, logs, -np.inf), np.where(seen_with & followed, logs_with, -np.inf)),
        explained=(explained, explained_with),
        growths=(single, growth),
        leaps=(np.zeros_like(single), leap),
    )


def _smooth(least: int) -> int:
    """The next length with no prime factor above 5: others take a Fourier transform several times as long."""
    powers = [int(3**i * 5**j) for i in range(8) for j in range(6)]
    return min(odd << max(0, -(-least // odd) - 1).bit_length() for odd in powers)


def _is_seen(height: Floats, spread: float) -> Bools:
    """Whether a bend is seen soon after it began: what blew up by many times its first size unseen may have
    begun anywhere before."""
    return np.asarray(height >= BEND_SEEN * spread)


def _finer(lengths: Floats, best: Floats) -> Floats:
    """Of each law, lengths closer to those that are likely enough; ``best``: likelihood (laws, lengths)."""
    found = []
    for own, logs in zip(lengths, best, strict=True):
        likely = (
            np.flatnonzero(logs >= logs.max() - _UNLIKELY) if np.isfinite(logs.max()) else np.arange(len(own))
        )
        low, high = max(0, int(likely[0]) - 1), min(len(own) - 1, int(likely[-1]) + 1)
        found.append(np.geomspace(own[low], own[high], len(own)))
    return np.stack(found)


def _misfit(blocks: _Blocks, shape: Floats, place: int) -> float:
    num = len(blocks.means)
    whole = np.concatenate([np.zeros(place), shape[: num - place]])
    rest = blocks.means - whole
    rest = (rest - rest.mean()) ** 2 / blocks.variance
    free = max(1, num - _PARAMETERS)
    after = rest[place:]
    return max(
        (float(rest.sum()) - free) / math.sqrt(2 * free),
        (float(after.sum()) - len(after)) / math.sqrt(2 * len(after)),
    )
