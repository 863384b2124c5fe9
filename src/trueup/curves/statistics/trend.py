"""The systematic part of a difference and its noise, told apart: shapes of a trend weighed against memory.

A difference that wanders may be noise with a long memory or a smooth change under short noise, and the
standard error of its mean depends on which by orders of magnitude. Every pair of a trend and a noise model is
weighed by its likelihood (as restricted likelihood over the constant, with Schwarz's price for each shape and
a price for having looked at all of them); the error of the mean is the mixture over them, none chosen.

The *truth* that an interval is for: the mean over the compared steps of the systematic part, that is of what
many repetitions of both runs would have in common. A ramp or a jump of the mean is systematic; how far noise,
up to a random walk, took the runs apart this once is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trueup.curves.statistics.memories import Memories, Pilot, memories, pilots, shapes, splines
from trueup.curves.statistics.noise import two_sided
from trueup.curves.thresholds import TREND_PRICE, TREND_SURE
from trueup.types.arrays import Bools, Floats

_MAX_BLOCKS, _MOST_SHAPES = 96, 14
_LEAST_WEIGHT, _BINS = 1e-4, 20.0
_NOTHING = 1e-20


@dataclass(frozen=True, slots=True, kw_only=True)
class Trended:
    """What the models say between them."""

    probability: float
    """that the difference has a trend: its systematic part is no constant"""
    weights: Floats
    """(M,) of groups of models, and of each group:"""
    errors: Floats
    """standard error of the mean"""
    freedom: Floats
    """degrees of freedom of that error"""

    @property
    def is_sure(self) -> bool:
        """Whether the difference has a trend beyond doubt."""
        return self.probability > TREND_SURE

    @property
    def standard_error(self) -> float:
        """Of the mean: the models' errors, averaged."""
        return float(self.weights @ self.errors)

    def p_value(self, mean: float) -> float:
        """The probability of a mean so far from a truth of zero."""
        every = zip(self.weights.tolist(), self.errors.tolist(), self.freedom.tolist(), strict=True)
        return float(sum(weight * two_sided(mean / error, freedom) for weight, error, freedom in every))

    def reach(self, level: float) -> float:
        """Half the width of the interval that misses the truth with probability ``level``."""
        low, high = 0.0, float(self.errors.max())
        while self.p_value(high) > level:
            high *= 2
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.p_value(middle) > level else (low, middle)
        return high


def trended(difference: Floats, good: Bools) -> Trended | None:
    """Weigh trends against memory over the steps that are ``good``; None where nothing varies.

    By means over at most 96 blocks of steps: a mean knows nothing of what happens within one.
    """
    width = -(-len(difference) // _MAX_BLOCKS)
    values = _block_means(difference, good, -(-len(difference) // width))
    spread = float(np.abs(values - values.mean()).max())
    if not spread > 0:
        return None
    known = memories(len(values), width > 1)
    logs, rests, sizes = _weighed(values / spread, known, width > 1)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    freedom = np.broadcast_to((len(values) - 1 - sizes)[:, None], weights.shape)
    errors = spread * np.sqrt(rests / freedom * known.mean_variance)
    kept = weights > _LEAST_WEIGHT
    _, group = np.unique(np.round(_BINS * np.log(errors[kept])), return_inverse=True)
    share = np.bincount(group, weights[kept])
    return Trended(
        probability=float(weights[1:].sum()),
        weights=share / share.sum(),
        errors=np.bincount(group, weights[kept] * errors[kept]) / share,
        freedom=np.bincount(group, weights[kept] * freedom[kept]) / share,
    )


def _block_means(difference: Floats, good: Bools, num: int) -> Floats:
    """Means over ``num`` blocks; one without a good step lies on the line between its neighbours."""
    edges = np.linspace(0, len(difference), num + 1).round().astype(np.int64)[:-1]
    count = np.add.reduceat(good.astype(np.float64), edges)
    total = np.add.reduceat(np.where(good, difference, 0.0), edges)
    known, where = count > 0, np.arange(num)
    means: Floats = np.interp(where, where[known], total[known] / count[known])
    return means


def _weighed(values: Floats, known: Memories, averaged: bool) -> tuple[Floats, Floats, Floats]:
    """Logarithmic weight and squares left (M, G) of every trend and noise model, and the trends' shapes (M,).

    The first trend is none.
    """
    num, price = len(values), TREND_PRICE * math.log(shapes(len(values)).shape[1])
    white = known.whiten @ values
    white -= known.ones * np.einsum("gi,gi->g", known.ones, white)[:, None]
    whole = np.maximum(np.einsum("gi,gi->g", white, white), _NOTHING)
    base = known.log_prior - 0.5 * (known.log_det + known.log_ones) - 0.5 * (num - 1) * np.log(whole)
    logs, rests, sizes = [base], [whole], [0]

    def add(explained: Floats, size: int, cost: float) -> None:
        rest = np.maximum(whole - explained, _NOTHING)
        gain = -0.5 * (num - 1 - size) * np.log(np.minimum(rest / whole, 1.0))
        logs.append(base + gain - 0.5 * size * math.log(num) - cost)
        rests.append(rest)
        sizes.append(size)

    for cost, columns, q in splines(num, averaged):
        if columns.shape[1] < num // 2:
            add((np.einsum("gik,gi->gk", q, white) ** 2).sum(axis=1), columns.shape[1], cost)
    paths = {tuple(_path(pilot, values)) for pilot in pilots(num, averaged)} - {()}
    seen: set[tuple[int, ...]] = set()
    for path in sorted(paths):
        explained = _explained(path, known, white)
        for size in range(1, len(path) + 1):
            if (name := tuple(sorted(path[:size]))) not in seen:
                seen.add(name)
                add(explained[:, size - 1], size, size * price)
    return np.stack(logs), np.stack(rests), np.array(sizes)


def _path(pilot: Pilot, values: Floats) -> list[int]:
    """Shapes one after the other, each the one that explains most of what those before it leave."""
    base, sizes = pilot.base, pilot.sizes
    rest = pilot.whiten @ values
    rest -= pilot.one * (pilot.one @ rest)
    left, span, chosen = sizes.copy(), np.zeros((0, len(rest))), list[int]()
    for _ in range(min(_MOST_SHAPES, len(rest) // 4)):
        gain = np.where(left > _LEAST_WEIGHT * sizes, (rest @ base) ** 2 / np.maximum(left, _NOTHING), 0.0)
        best = int(gain.argmax())
        if not gain[best] > 0:
            break
        new = base[:, best]
        for _ in range(2):  # once more: what rounding left of the first time
            new = new - (span @ new) @ span
        new = new / np.linalg.norm(new)
        span = np.vstack([span, new])
        rest = rest - new * (new @ rest)
        left = left - (new @ base) ** 2
        chosen.append(best)
    return chosen


def _explained(path: tuple[int, ...], known: Memories, white: Floats) -> Floats:
    """Squares (G, K) that the first 1 to K shapes of a path explain."""
    columns = known.whiten @ shapes(white.shape[1])[:, path]
    columns -= known.ones[:, :, None] * np.einsum("gi,gik->gk", known.ones, columns)[:, None, :]
    columns /= np.sqrt(np.einsum("gik,gik->gk", columns, columns))[:, None, :]
    gram = columns.transpose(0, 2, 1) @ columns + 1e-10 * np.eye(len(path))
    product = np.einsum("gik,gi->gk", columns, white)
    solved = np.linalg.solve(np.linalg.cholesky(gram), product[:, :, None])[:, :, 0]
    found: Floats = np.cumsum(solved**2, axis=1)
    return found
