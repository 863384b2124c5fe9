"""The systematic part of a difference and its noise, told apart: shapes of a trend weighed against memory.

A difference that wanders may be noise with a long memory or a smooth change under short noise, and the
standard error of its mean depends on which by orders of magnitude. Every pair of a trend and a noise model is
weighed by its likelihood (as restricted likelihood over the constant, with Schwarz's price for each shape and
a price for having looked at all of them) and has its own best estimate of the mean, by generalised least
squares; what is known of the mean is the mixture over them, none chosen.

The *truth* that an interval is for: the mean over the compared steps of the systematic part, that is of what
many repetitions of both runs would have in common. A ramp or a jump of the mean is systematic; how far noise,
up to a random walk, took the runs apart this once is not: a walk's systematic part is what it began with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from trueup.curves.statistics.memories import (
    Memories,
    Pilots,
    ShapeFamily,
    memories,
    pilots,
    shapes,
    singles,
    splines,
    without_constant,
)
from trueup.curves.statistics.noise import two_sided_each
from trueup.curves.thresholds import TREND_ODDS, TREND_PRICE, TREND_SURE, TREND_UNDER_WALK, TREND_WALK_OPEN
from trueup.types.arrays import Bools, Floats, Ints

_MAX_BLOCKS, _MOST_SHAPES, _BLOCKS_A_SHAPE = 96, 14, 4
_LEAST_WEIGHT = 1e-4
_NOTHING = 1e-20
_EXACT = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Trended:
    """What the models say between them of the systematic part's mean."""

    probability: float
    """that the difference has a trend: its systematic part is no constant"""
    weights: Floats
    """(M,) of models, and of each:"""
    centres: Floats
    """its estimate less the mean of the difference"""
    errors: Floats
    """standard error of that estimate"""
    freedom: Floats
    """degrees of freedom of that error"""
    walk: float = 0.0
    """the weight of trends under a random walk"""

    @property
    def wider(self) -> float:
        """By how much the interval is wider than what the models say: where a walk is not ruled out, a trend
        and a walk pass for each other, and what fits best has followed the walk."""
        return 1 + (TREND_UNDER_WALK - 1) * min(1.0, self.walk / TREND_WALK_OPEN)

    @property
    def is_sure(self) -> bool:
        """Whether the difference has a trend beyond doubt."""
        return self.probability > TREND_SURE

    @property
    def standard_error(self) -> float:
        """Of the mean, as an estimate of its systematic part: the models' errors, averaged."""
        return self.wider * float(self.weights @ np.sqrt(self.errors**2 + self.centres**2))

    def p_value(self, mean: float) -> float:
        """Twice the probability that the systematic part lies beyond zero, as seen from the mean."""
        place = -mean / self.wider
        return min(1.0, 2 * (self._below(place) if mean > 0 else 1 - self._below(place)))

    def interval(self, level: float) -> tuple[float, float]:
        """Around the mean: holds it, and misses the systematic part with probability ``level`` at most."""
        low, high = self._quantile(level / 2), self._quantile(1 - level / 2)
        return min(0.0, self.wider * low), max(0.0, self.wider * high)

    def _below(self, place: float) -> float:
        """The probability that the systematic part lies below the mean + ``place``."""
        z = (place - self.centres) / self.errors
        tails = 0.5 * two_sided_each(z, self.freedom)
        return float(self.weights @ np.where(z < 0, tails, 1 - tails))

    def _quantile(self, share: float) -> float:
        """Where that probability is ``share``: regula falsi (Illinois: an end that stays counts half), whose
        every third step halves, for where it rises in one place alone."""
        reach = float(self.errors.max())
        low, high = float(self.centres.min()) - reach, float(self.centres.max()) + reach
        while (under := self._below(low) - share) > 0:
            low -= high - low
        while (over := self._below(high) - share) < 0:
            high += high - low
        place, kept = low, 0
        for at in range(120):
            place = low + (high - low) * (under / (under - over) if at % 3 < 2 and under < over else 0.5)
            left = self._below(place) - share
            if abs(left) <= _EXACT * share or high - low <= _EXACT * reach:
                break
            if left < 0:
                low, under, over = place, left, over / 2 if kept < 0 else over
            else:
                high, over, under = place, left, under / 2 if kept > 0 else under
            kept = -1 if left < 0 else 1
        return place


def trended(difference: Floats, good: Bools) -> Trended | None:
    """Weigh trends against memory over the steps that are ``good``; None where nothing varies.

    By means over at most 96 blocks of steps: a mean knows nothing of what happens within one.
    """
    width = -(-len(difference) // _MAX_BLOCKS)
    values = _block_means(difference, good, -(-len(difference) // width))
    spread = float(np.abs(values - values.mean()).max())
    if not spread > 0:
        return None
    found = _weighed((values - values.mean()) / spread, width > 1)
    logs = np.concatenate(found.logs)
    weights = np.exp(logs - logs.max())
    kept = weights > _LEAST_WEIGHT * weights.max()
    walks = weights.reshape(-1, len(found.logs[0]))[1:, -1].sum()  # the last of the noise models
    walk = float(walks) / float(weights.sum())
    flat = float(weights[: len(found.logs[0])].sum())
    trends = float(weights.sum()) - flat
    weights = weights[kept] / weights[kept].sum()
    return Trended(
        probability=trends / (trends + math.exp(TREND_ODDS) * flat),
        weights=weights,
        centres=spread * np.concatenate(found.centres)[kept],
        errors=spread * np.concatenate(found.errors)[kept],
        freedom=np.concatenate(found.freedom)[kept],
        walk=walk,
    )


def _block_means(difference: Floats, good: Bools, num: int) -> Floats:
    """Means over ``num`` blocks; one without a good step lies on the line between its neighbours."""
    edges = np.linspace(0, len(difference), num + 1).round().astype(np.int64)[:-1]
    count = np.add.reduceat(good.astype(np.float64), edges)
    total = np.add.reduceat(np.where(good, difference, 0.0), edges)
    known, where = count > 0, np.arange(num)
    means: Floats = np.interp(where, where[known], total[known] / count[known])
    return means


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Of every trend, (G,) each: of the noise models under it."""

    known: Memories
    white: Floats
    """(G, N) without their constant"""
    base: Floats
    """logarithmic weight without a trend"""
    whole: Floats
    """squares without a trend"""
    level: Floats
    """the mean without a trend"""
    logs: list[Floats] = field(default_factory=list)
    centres: list[Floats] = field(default_factory=list)
    errors: list[Floats] = field(default_factory=list)
    freedom: list[Floats] = field(default_factory=list)

    def add(self, size: int, gain: float, product: Floats, moved: Floats) -> None:
        """A trend of orthonormal columns (G, K), whose products with values and with the mean these are."""
        log, rest = self.judge(size, (product**2).sum(axis=1))
        free = self.white.shape[1] - 1 - size
        variance = self.known.share**2 + (moved**2).sum(axis=1)
        self.logs.append(log + gain)
        self.centres.append(self.level + (product * moved).sum(axis=1))
        self.errors.append(np.sqrt(rest / free * variance))
        self.freedom.append(np.full(len(log), float(free)))

    def add_path(self, price: float, product: Floats, moved: Floats, kept: Bools) -> None:
        """Trends of a path's first columns, as many as are ``kept``, (K,), each column at ``price``; the
        products are (G, K)."""
        sizes = np.flatnonzero(kept) + 1
        logs, rest = self.judge(sizes, (product**2).cumsum(axis=1)[:, kept])
        free = self.white.shape[1] - 1 - sizes
        variance = self.known.share[:, None] ** 2 + (moved**2).cumsum(axis=1)[:, kept]
        self.logs.extend((logs + TREND_ODDS - sizes * price).T)
        self.centres.extend((self.level[:, None] + (product * moved).cumsum(axis=1)[:, kept]).T)
        self.errors.extend(np.sqrt(rest / free * variance).T)
        self.freedom.extend(np.full(len(logs), float(one)) for one in free)

    def add_family(self, gain: float, family: ShapeFamily, pulled: Floats) -> None:
        """All shapes of a family, as likely each, as the one distribution that they are together; ``pulled``:
        the values, whitened twice."""
        num = self.white.shape[1]
        products, moved = family.products(pulled), family.moved
        size, count = len(products), products[0].shape[1]
        logs, rest = self.judge(size, np.sum([one**2 for one in products], axis=0))
        centres = self.level[:, None] + np.sum([a * b for a, b in zip(products, moved, strict=True)], axis=0)
        free = num - 1 - size
        squares = rest / free * (self.known.share[:, None] ** 2 + np.sum([one**2 for one in moved], axis=0))
        top = logs.max(axis=1, keepdims=True)
        weights = np.exp(logs - top)
        total = weights.sum(axis=1)
        centre = (weights * centres).sum(axis=1) / total
        spread = (weights * (squares + (centres - centre[:, None]) ** 2)).sum(axis=1) / total
        self.logs.append(top[:, 0] + np.log(total / count) + gain)
        self.centres.append(centre)
        self.errors.append(np.sqrt(spread))
        self.freedom.append(np.full(len(total), float(free)))

    def judge(self, size: int | Ints, explained: Floats) -> tuple[Floats, Floats]:
        """Logarithmic weight and squares left of trends with ``size`` columns."""
        num = self.white.shape[1]
        shape = (-1,) + (1,) * (explained.ndim - 1)
        base, whole = self.base.reshape(shape), self.whole.reshape(shape)
        rest = np.maximum(whole - explained, _NOTHING)
        gain = -0.5 * (num - 1 - size) * np.log(np.minimum(rest / whole, 1.0))
        return base + gain - 0.5 * size * math.log(num), rest


def _weighed(values: Floats, averaged: bool) -> _Found:
    """Weight, estimate and error of the mean of every trend and noise model; the first trend is none."""
    num = len(values)
    known, price = memories(num, averaged), TREND_PRICE * math.log(shapes(num).shape[1])
    white = known.whiten @ values
    first = np.einsum("gi,gi->g", known.ones, white)
    white -= known.ones * first[:, None]
    whole = np.maximum(np.einsum("gi,gi->g", white, white), _NOTHING)
    found = _Found(
        known=known,
        white=white,
        base=known.log_prior - 0.5 * (known.log_det + known.log_ones) - 0.5 * (num - 1) * np.log(whole),
        whole=whole,
        level=known.share * first,
    )
    nothing = np.zeros((len(whole), 0))
    found.add(0, 0.0, nothing, nothing)
    for at, q in enumerate(splines(num, averaged)):
        if q.shape[2] < num // 2:
            both = [np.einsum("gik,gi->gk", q, one) for one in (found.white, known.pull)]
            found.add(q.shape[2], 0.0 if at else TREND_ODDS, both[0], both[1])
    families = singles(num, averaged) if num // _BLOCKS_A_SHAPE >= 2 else ()
    pulled = (white[:, None, :] @ known.whiten)[:, 0]
    for family in families:
        found.add_family(TREND_ODDS - math.log(len(families)), family, pulled)
    paths = sorted(set(_paths(pilots(num, averaged), values)) - {()})
    seen: set[tuple[int, ...]] = set()
    for path, (product, moved) in zip(paths, _along(paths, found), strict=True):
        names = [tuple(sorted(path[: size + 1])) for size in range(len(path))]
        kept = np.array([at > 0 and name not in seen for at, name in enumerate(names)])
        seen.update(names)
        found.add_path(price, product, moved, kept)
    return found


def _paths(known: Pilots, values: Floats) -> list[tuple[int, ...]]:
    """Under each noise model, shapes one after the other: each the one that explains most of what those
    before it leave."""
    sizes, (num_models, num) = known.sizes, known.ones.shape
    rest = known.whiten @ values
    rest -= known.ones * np.einsum("pi,pi->p", known.ones, rest)[:, None]
    left, product = sizes.copy(), known.products(rest)
    most = min(_MOST_SHAPES, num // _BLOCKS_A_SHAPE)
    span, models = np.zeros((num_models, most, num)), np.arange(num_models)
    chosen: list[list[int]] = [[] for _ in models]
    for size in range(most):
        gain = np.where(left > _LEAST_WEIGHT * sizes, product**2 / np.maximum(left, _NOTHING), 0.0)
        best = gain.argmax(axis=1)
        grows = gain[models, best] > 0
        new = np.where(grows[:, None], known.whitened(best), 0.0)
        for _ in range(2):  # once more: what rounding left of the first time
            new = new - (new[:, None, :] @ span.transpose(0, 2, 1) @ span)[:, 0]
        new /= np.where(grows, np.linalg.norm(new, axis=1), 1.0)[:, None]
        span[:, size] = new
        along, part = known.products(new), np.einsum("pi,pi->p", new, rest)[:, None]
        product -= part * along  # of what is left: new is of length 1
        rest -= part * new
        left -= along**2
        for at in np.flatnonzero(grows):
            chosen[at].append(int(best[at]))
    return [tuple(path) for path in chosen]


def _along(paths: list[tuple[int, ...]], found: _Found) -> Iterator[tuple[Floats, Floats]]:
    """Products (G, K) of each path's shapes, made orthonormal one after the other, with values and mean."""
    known, used = found.known, sorted({shape for path in paths for shape in path})
    columns = without_constant(known.whiten @ shapes(found.white.shape[1])[:, used], known.ones)
    columns /= np.sqrt(np.einsum("gik,gik->gk", columns, columns))[:, None, :]
    grams = columns.transpose(0, 2, 1) @ columns
    both = columns.transpose(0, 2, 1) @ np.stack([found.white, known.pull], axis=2)
    for path in paths:
        at = np.searchsorted(used, path)
        gram = grams[:, at[:, None], at] + 1e-10 * np.eye(len(path))
        solved = np.linalg.solve(np.linalg.cholesky(gram), both[:, at])
        yield solved[:, :, 0], solved[:, :, 1]
