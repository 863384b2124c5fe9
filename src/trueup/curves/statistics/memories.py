"""Families that a difference is weighed against: noise with more or less memory, and shapes of a trend."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np

from trueup.curves.thresholds import TREND_WALK, TREND_WHITE
from trueup.types.arrays import Floats, Ints

TIMES = (0.0, 0.3, 0.6, 1.0, 1.5, 2.2, 3.3, 5.0, 7.5, 11.0, 16.0, 9600.0)
"""memory of the noise in blocks; 0 is none, the last a random walk"""
RATIOS = (0.0, 1.0, 5.0, 25.0)
"""noise of single steps beside it, over what the slow part moves in a block"""
_BESIDE = (1.0, 16.0)
"""memories that may have such noise beside them: a slower one could pass for any trend"""
_PILOTS = (
    (0.0, 0.0),
    (1.0, 0.0),
    (3.3, 0.0),
    (11.0, 0.0),
    (16.0, 0.0),
    (9600.0, 0.0),
    (5.0, 5.0),
    (16.0, 25.0),
)
"""noise models under which shapes are looked for"""
_KNOTS = (0, 5, 10, 20, 36)
_RAMPS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
_SIGMOIDS = (1.5, 3.0, 6.0, 12.0)
_SATURATIONS = (3.0, 5.0, 8.0, 12.0, 18.0, 28.0)
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """Noise models (G,) over N blocks, each as AR(1) in continuous time with or without independent noise."""

    whiten: Floats
    """(G, N, N): makes the noise independent with variance 1"""
    log_det: Floats
    log_prior: Floats
    ones: Floats
    """(G, N): a constant, whitened, of length 1"""
    share: Floats
    """of the mean that the constant is, as a length"""
    pull: Floats
    """(G, N): whose product with what a shape explains is its part of the mean"""
    log_ones: Floats
    """logarithm of that length, squared, before"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilots:
    """Some noise models (P,), and all shapes (A,) whitened by each."""

    whiten: Floats
    """(P, N, N)"""
    ones: Floats
    """(P, N): a constant, whitened, of length 1"""
    shapes: Floats
    """(N, A) as they are: what is orthogonal to the constant has the same product with a whitened shape as
    with the shape before, once the other side is whitened twice"""
    sizes: Floats
    """(P, A): squares of the whitened shapes without their constant"""

    def whitened(self, chosen: Ints) -> Floats:
        """One shape of each noise model, whitened, without its constant, (P, N)."""
        white = np.einsum("pij,jp->pi", self.whiten, self.shapes[:, chosen])
        found: Floats = white - self.ones * np.einsum("pi,pi->p", self.ones, white)[:, None]
        return found

    def products(self, white: Floats) -> Floats:
        """(P, A) of whitened values without a constant (P, N) and all whitened shapes."""
        found: Floats = (white[:, None, :] @ self.whiten)[:, 0] @ self.shapes
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFamily:
    """Shapes of one kind (A,), whitened by every noise model, without their constant and of length 1."""

    shapes: Floats
    """(N, A) as they are"""
    sizes: Floats
    """(G, A): length of the whitened ones, before"""
    beside: Floats | None
    """(G, A - 1) of jumps: product of each with the next. A jump within a block is one before it and one
    after it: of two columns, the second is what the one after it adds to the first"""
    moved: tuple[Floats, ...]
    """of each column, (G, A): its product with what the mean is"""

    def products(self, pulled: Floats) -> tuple[Floats, ...]:
        """Of each column, (G, A): its product with values that were whitened twice, (G, N)."""
        first = pulled @ self.shapes / self.sizes
        if self.beside is None:
            return (first,)
        left = np.maximum(np.sqrt(np.maximum(1 - self.beside**2, 0.0)), _NOTHING)
        return first[:, :-1], (first[:, 1:] - first[:, :-1] * self.beside) / left


@cache
def memories(num: int, averaged: bool) -> Memories:
    """All noise models over ``num`` blocks; ``averaged``: blocks of several steps."""
    models = [(time, ratio) for time in TIMES for ratio in _ratios(time)]
    covariances = [_covariance(num, time, ratio, averaged) for time, ratio in models]
    factors = [np.linalg.cholesky(one) for one in covariances]
    whiten = np.stack([np.linalg.inv(one) for one in factors])
    ones = whiten.sum(axis=2)
    sizes = np.einsum("gi,gi->g", ones, ones)
    ones /= np.sqrt(sizes)[:, None]
    means = np.stack([one.mean(axis=0) for one in factors])  # times whitened values: the mean over all blocks
    share = np.einsum("gi,gi->g", ones, means)
    return Memories(
        whiten=whiten,
        log_det=np.array([2 * np.log(np.diag(one)).sum() for one in factors]),
        log_prior=np.array([_log_prior(time, ratio, num) for time, ratio in models]),
        ones=ones,
        share=share,
        pull=means - ones * share[:, None],
        log_ones=np.log(sizes),
    )


def _ratios(time: float) -> tuple[float, ...]:
    return RATIOS if _BESIDE[0] <= time <= _BESIDE[1] else RATIOS[:1]


def _log_prior(time: float, ratio: float, num: int) -> float:
    """Of the models of one memory, that without noise beside it has half of the weight."""
    weight = TREND_WALK if time > num else TREND_WHITE if time == 0 else 1.0
    beside = len(_ratios(time)) - 1
    share = (0.5 if not ratio else 0.5 / beside) if beside else 1.0
    return math.log(weight * share)


def _covariance(num: int, time: float, ratio: float, averaged: bool) -> Floats:
    """Of means over blocks (or of single steps) of x' = -x / time + noise of variance 1 a block.

    Memory that is short beside the run has been there from before it; longer memory, up to a random walk,
    begins at zero with the run, as the difference of two runs from one checkpoint does.
    """
    if time == 0:
        return np.eye(num)
    at, rate = np.arange(num, dtype=np.float64), 1 / time
    lag = np.abs(at[:, None] - at[None, :])
    if averaged:
        inside = (-math.expm1(-rate) / rate) ** 2
        found = inside * np.exp(-rate * np.maximum(lag - 1, 0))
        np.fill_diagonal(found, 2 * (rate - 1 + math.exp(-rate)) / rate**2)
        begun = inside * np.exp(-rate * (at[:, None] + at[None, :]))
    else:
        found = np.exp(-rate * lag)
        begun = np.exp(-rate * (at[:, None] + at[None, :] + 2))
    if 8 * time > num:
        found = found - begun
    both: Floats = found / (2 * rate) + ratio * np.eye(num)
    return both


@cache
def shapes(num: int) -> Floats:
    """What a difference may do once, (N, A): jump, grow, ramp up, level off, each at every block."""
    return np.concatenate(_families(num), axis=1)


def _families(num: int) -> list[Floats]:
    """The same by family, jumps first."""
    at = np.arange(num) + 0.5
    after = [np.maximum(at - k, 0) for k in range(num - 2)]
    families = [
        [(at > k).astype(np.float64) for k in range(1, num)],
        [u / num for u in after],
        [np.sqrt(u / num) for u in after],
        [(u / num) ** 2 for u in after[:-1]],
        [np.clip((at - k) / w, 0, 1) for w in _RAMPS for k in range(num - w)],
        [1 / (1 + np.exp(-(at - k) / w)) for w in _SIGMOIDS for k in range(2, num - 2)],
        [-np.expm1(-u / w) for w in _SATURATIONS for u in after],
    ]
    return [np.stack(one, axis=1) for one in families if one]


@lru_cache(maxsize=4)
def singles(num: int, averaged: bool) -> tuple[ShapeFamily, ...]:
    """The shapes by family, under all noise models."""
    known = memories(num, averaged)
    found = []
    for at, family in enumerate(_families(num)):
        base = without_constant(known.whiten @ family, known.ones)
        sizes = np.maximum(np.sqrt(np.einsum("gia,gia->ga", base, base)), _NOTHING)
        both = None if at else np.einsum("gia,gia->ga", base[:, :, :-1], base[:, :, 1:])
        beside = None if both is None else both / (sizes[:, :-1] * sizes[:, 1:])
        one = ShapeFamily(shapes=family, sizes=sizes, beside=beside, moved=())
        found.append(replace(one, moved=one.products((known.pull[:, None, :] @ known.whiten)[:, 0])))
    return tuple(found)


def without_constant(white: Floats, ones: Floats) -> Floats:
    """Whitened columns (G, N, A) less what a constant, (G, N), explains of them."""
    white -= ones[:, :, None] * (ones[:, None, :] @ white)
    return white


@lru_cache(maxsize=4)
def pilots(num: int, averaged: bool) -> Pilots:
    """The shapes under some noise models."""
    models = [(time, ratio) for time in TIMES for ratio in _ratios(time)]
    known = memories(num, averaged)
    chosen = [models.index(model) for model in _PILOTS]
    whiten, ones = known.whiten[chosen], known.ones[chosen]
    base = without_constant(whiten @ shapes(num), ones)
    return Pilots(whiten=whiten, ones=ones, shapes=shapes(num), sizes=np.einsum("pij,pij->pj", base, base))


@cache
def splines(num: int, averaged: bool) -> tuple[Floats, ...]:
    """A line and cubic splines, whitened and orthonormal, (G, N, K)."""
    known = memories(num, averaged)
    at = (np.arange(num) + 0.5) / num
    found = []
    for knots in _KNOTS:
        columns = [at] if not knots else [at, at**2, at**3]
        columns += [np.maximum(at - k / knots, 0) ** 3 for k in range(1, knots)]
        base = np.linalg.qr(np.stack(columns, axis=1))[0]
        white = known.whiten @ base
        found.append(np.linalg.qr(without_constant(white, known.ones))[0])
    return tuple(found)
