"""Where a slow growth begins: laws of growth fitted to the whole difference, under noise with memory.

A growth that begins flat (a square, an exponential) is not seen before it has grown. Its law tells where it
began, and the steps far behind tell the law. The model is ``d[t] = m + a f((t - t0) / L) + n[t]``: ``f`` one
of some laws that may end at ``L``, ``n`` AR(1) noise. Every law, length and place is fitted by generalised
least squares; the place is the median of what all of them say, each weighed by its likelihood, integrated
over ``m``, and over ``a`` by the height that is reached. Beforehand a line is as likely as all other laws
together: where the steps do not tell laws apart, the place would else depend on how many laws of either kind
are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trueup.curves.statistics.noise import filled, memory, outliers, robust_scale
from trueup.curves.thresholds import BEND_MISFIT, BEND_SIGMAS, GROWTH_LENGTH, ONSET_EDGE, SPIKE_BEHIND
from trueup.types.arrays import Floats

Law = Callable[[Floats], Floats]

_BLOCKS, _IN_A_BLOCK, _FEWEST = 400, 4, 40
_POWERS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
_RATES = (1.0, 1.5, 2.0, 2.5, 3.0, 3.75, 4.5, 5.5)
_LONGEST, _LENGTHS, _FINER = 2.5, 24, 13
"""a law that goes on to the end has a length beyond it; lengths of a law in the first round, and later"""
_UNLIKELY = 10.0
"""logarithm of odds: a length that is less likely than the law's best by more is looked at no further"""
_ROUNDS = 3
_SMOOTHED = 50
_SOME = 8
_PARAMETERS = 5
"""mean, height, place, length, memory"""
_NOTHING = 1e-300
_LINE = _POWERS.index(1.0)


def _power(power: float) -> Law:
    return lambda u: np.minimum(u, 1.0) ** power


def _exponential(rate: float) -> Law:
    return lambda u: np.expm1(rate * np.minimum(u, 1.0)) / math.expm1(rate)


_LAWS: tuple[Law, ...] = (
    *(_power(power) for power in _POWERS),
    *(_exponential(rate) for rate in _RATES),
    lambda u: -np.expm1(-u),
)
_LOG_ODDS = np.where(np.arange(len(_LAWS)) == _LINE, math.log(len(_LAWS) - 1), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Where a difference begins to grow; indices."""

    index: int
    """as likely too early as too late"""
    earliest: int
    """before which it is with a chance of one in twenty"""
    latest: int
    """after which it is with a chance of one in twenty"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """What is left of each step when its neighbour's share is taken away, as means over blocks of steps."""

    means: Floats
    memory: float
    width: int
    begin: int
    """index of the step that the first block begins with"""
    variance: float
    """of a mean, as the steps within each block tell it"""

    @property
    def squares(self) -> float:
        """Around their mean."""
        return float(np.var(self.means)) * len(self.means)


def growth(values: Floats) -> Growth | None:
    """Fit laws of growth to ``values`` (finite); None where none describes them.

    Also None of too few steps, of a growth shorter than what blocks tell, and of one so far beyond the noise
    that its first steps tell more than its law. Outliers are those from the steps right beside them: what
    grows steeply is none.
    """
    num = len(values)
    if num < _FEWEST * _IN_A_BLOCK:
        return None
    lengths = np.tile(num * np.geomspace(GROWTH_LENGTH, _LONGEST, _LENGTHS), (len(_LAWS), 1))
    clean = filled(values, outliers(values, SPIKE_BEHIND))
    rest = _roughness(clean)
    for _ in range(_ROUNDS):
        blocks = _whitened(clean, memory(rest, np.ones(num, bool)).coefficient)
        logs, first = _weighed(blocks, lengths)
        law, at, place = np.unravel_index(logs.argmax(), logs.shape)
        begin, length = blocks.begin + (first + int(place)) * blocks.width, float(lengths[law, at])
        rest = _rest(clean, blocks.memory, _LAWS[law], length, begin)
        lengths = _finer(lengths, logs.max(axis=2))
    if _is_bend(length / num, float(np.ptp(clean - rest)) / max(robust_scale(rest), _NOTHING)):
        return None
    if not _fits(rest, blocks, max(begin - blocks.begin, 0) // blocks.width, int(length / blocks.width)):
        return None
    share = np.cumsum(np.exp(logs - logs.max()).sum(axis=(0, 1)))
    earliest, index, latest = (
        blocks.begin + (first + int(np.searchsorted(share, part * share[-1]))) * blocks.width
        for part in (0.05, 0.5, 0.95)
    )
    return Growth(index=index, earliest=earliest, latest=latest)


def _is_bend(length: float, sigmas: float) -> bool:
    """Whether a growth over this share of the steps, to this height, is one that its first steps tell."""
    return length <= GROWTH_LENGTH or sigmas > BEND_SIGMAS


def _fits(rest: Floats, blocks: _Blocks, begin: int, length: int) -> bool:
    """Whether a law leaves no more while it grows, and after it began, than there was before."""
    white = (rest[1:] - blocks.memory * rest[:-1])[blocks.begin - 1 :]
    left = white.reshape(-1, blocks.width).mean(axis=1)
    left = (left - left.mean()) ** 2
    before = left[: max(begin, _FEWEST)]
    grown = (left[begin : begin + max(_SOME, length)], left[begin:])
    return all(
        float(np.sum(part) / np.mean(before)) - len(part)
        <= BEND_MISFIT * math.sqrt(2 * len(part) * (1 + len(part) / len(before)))
        for part in grown
    )


def _roughness(values: Floats) -> Floats:
    """What is left around running means, as a first idea of the noise."""
    width = max(8, len(values) // _SMOOTHED)
    sums = np.cumsum(np.concatenate([np.zeros(1), np.pad(values, (width // 2, width - width // 2), "edge")]))
    found: Floats = values - ((sums[width:] - sums[:-width]) / width)[: len(values)]
    return found


def _whitened(values: Floats, coefficient: float) -> _Blocks:
    white = values[1:] - coefficient * values[:-1]
    width = max(_IN_A_BLOCK, len(white) // _BLOCKS)
    begin = len(white) % width
    parts = white[begin:].reshape(-1, width)
    means = parts.mean(axis=1)
    within = float(np.mean((parts - means[:, None]) ** 2)) * width / (width - 1)
    return _Blocks(
        means=means,
        memory=coefficient,
        width=width,
        begin=begin + 1,
        variance=max(within / width, _NOTHING),
    )


def _weighed(blocks: _Blocks, lengths: Floats) -> tuple[Floats, int]:
    """Logarithm of the likelihood (laws, lengths, places) over each of the lengths (laws, lengths); the
    block of the first place."""
    y, num = blocks.means - blocks.means.mean(), len(blocks.means)
    after = (np.arange(num) + 0.5) * blocks.width
    before = np.maximum(after - 1, 0)
    heights = np.stack([law(after / own[:, None]) for law, own in zip(_LAWS, lengths, strict=True)])
    last = np.stack([law(before / own[:, None]) for law, own in zip(_LAWS, lengths, strict=True)])
    shapes = heights - blocks.memory * last
    # from a place on, a shape is the same moved by as many blocks: all places are one correlation
    size = 2 * num
    product = np.fft.irfft(np.conj(np.fft.rfft(shapes, size)) * np.fft.rfft(y, size), size)[..., :num]
    total, square = np.cumsum(shapes, axis=-1)[..., ::-1], np.cumsum(shapes**2, axis=-1)[..., ::-1]
    spread = np.maximum(square - total**2 / num, _NOTHING)
    edge = max(_IN_A_BLOCK, int(ONSET_EDGE * num))
    places = slice(edge, num - edge)
    explained = (product**2 / spread)[..., places]
    left = max(blocks.squares - float(explained.max()), _NOTHING)
    unit = (spread / heights[..., ::-1] ** 2)[..., places]  # of a height of 1 at the end
    apart = np.log(lengths[:, -1:] / lengths[:, :1])[..., None]  # each length stands for those around it
    prior = np.log(apart) + _LOG_ODDS[:, None, None]
    return 0.5 * explained * (num - _PARAMETERS) / left - 0.5 * np.log(unit) + prior, edge


def _rest(values: Floats, coefficient: float, law: Law, length: float, begin: int) -> Floats:
    """What is left of the values when the law is taken away, by generalised least squares."""
    shape = law(np.maximum(np.arange(len(values)) - begin + 1, 0) / length)
    x, y = (one[1:] - coefficient * one[:-1] for one in (shape, values))
    x, y = x - x.mean(), y - y.mean()
    rest = values - float(x @ y) / max(float(x @ x), _NOTHING) * shape
    found: Floats = rest - rest.mean()
    return found


def _finer(lengths: Floats, best: Floats) -> Floats:
    """Of each law, lengths closer to those that are likely enough; ``best``: likelihood (laws, lengths)."""
    found = []
    for own, logs in zip(lengths, best, strict=True):
        likely = np.flatnonzero(logs > logs.max() - _UNLIKELY)
        low, high = max(0, int(likely[0]) - 1), min(len(own) - 1, int(likely[-1]) + 1)
        found.append(np.geomspace(own[low], own[high], _FINER))
    return np.stack(found)
