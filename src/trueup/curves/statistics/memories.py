"""Families that a difference is weighed against: noise with more or less memory, and shapes of a trend."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from trueup.curves.thresholds import TREND_LINE, TREND_WALK, TREND_WHITE
from trueup.types.arrays import Floats

TIMES = (0.0, 0.3, 0.6, 1.0, 1.5, 2.2, 3.3, 5.0, 7.5, 11.0, 16.0, 24.0, 40.0, 9600.0)
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
    (40.0, 0.0),
    (9600.0, 0.0),
    (5.0, 5.0),
    (16.0, 25.0),
)
"""noise models under which shapes are looked for"""
_KNOTS = (0, 5, 10, 20, 36)
_RAMPS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
_SIGMOIDS = (1.5, 3.0, 6.0, 12.0)
_SATURATIONS = (3.0, 5.0, 8.0, 12.0, 18.0, 28.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """Noise models (G,) over N blocks, each as AR(1) in continuous time with or without independent noise."""

    whiten: Floats
    """(G, N, N): makes the noise independent with variance 1"""
    log_det: Floats
    mean_variance: Floats
    """of the mean over all blocks, in units of the model's variance"""
    log_prior: Floats
    ones: Floats
    """(G, N): a constant, whitened, of length 1"""
    log_ones: Floats
    """logarithm of that length, squared, before"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """One noise model, and all shapes whitened by it."""

    whiten: Floats
    one: Floats
    base: Floats
    sizes: Floats


@cache
def memories(num: int, averaged: bool) -> Memories:
    """All noise models over ``num`` blocks; ``averaged``: blocks of several steps."""
    models = [(time, ratio) for time in TIMES for ratio in _ratios(time)]
    covariances = [_covariance(num, time, ratio, averaged) for time, ratio in models]
    factors = [np.linalg.cholesky(one) for one in covariances]
    whiten = np.stack([np.linalg.inv(one) for one in factors])
    ones = whiten.sum(axis=2)
    sizes = np.einsum("gi,gi->g", ones, ones)
    return Memories(
        whiten=whiten,
        log_det=np.array([2 * np.log(np.diag(one)).sum() for one in factors]),
        mean_variance=np.array([one.sum() / num**2 for one in covariances]),
        log_prior=np.array([_log_prior(time, num) for time, _ in models]),
        ones=ones / np.sqrt(sizes)[:, None],
        log_ones=np.log(sizes),
    )


def _ratios(time: float) -> tuple[float, ...]:
    return RATIOS if _BESIDE[0] <= time <= _BESIDE[1] else RATIOS[:1]


def _log_prior(time: float, num: int) -> float:
    weight = TREND_WALK if time > num else TREND_WHITE if time == 0 else 1.0
    return math.log(weight / len(_ratios(time)))


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
    at = np.arange(num) + 0.5
    found = [(at > k).astype(np.float64) for k in range(1, num)]
    after = [np.maximum(at - k, 0) for k in range(num - 2)]
    found += (
        [u / num for u in after] + [np.sqrt(u / num) for u in after] + [(u / num) ** 2 for u in after[:-1]]
    )
    found += [np.clip((at - k) / w, 0, 1) for w in _RAMPS for k in range(num - w)]
    found += [1 / (1 + np.exp(-(at - k) / w)) for w in _SIGMOIDS for k in range(2, num - 2)]
    found += [-np.expm1(-u / w) for w in _SATURATIONS for u in after]
    return np.stack(found, axis=1)


@cache
def pilots(num: int, averaged: bool) -> tuple[Pilot, ...]:
    """The shapes under some noise models."""
    models = [(time, ratio) for time in TIMES for ratio in _ratios(time)]
    known = memories(num, averaged)
    found = []
    for model in _PILOTS:
        at = models.index(model)
        one, whiten = known.ones[at], known.whiten[at]
        base = whiten @ shapes(num)
        base -= one[:, None] * (one @ base)
        found.append(Pilot(whiten=whiten, one=one, base=base, sizes=np.einsum("ij,ij->j", base, base)))
    return tuple(found)


@cache
def splines(num: int, averaged: bool) -> tuple[tuple[float, Floats, Floats], ...]:
    """A line and cubic splines: what each costs, the columns (N, K), and whitened orthonormal (G, N, K)."""
    known = memories(num, averaged)
    at = (np.arange(num) + 0.5) / num
    found = []
    for knots in _KNOTS:
        columns = [at] if not knots else [at, at**2, at**3]
        columns += [np.maximum(at - k / knots, 0) ** 3 for k in range(1, knots)]
        base = np.linalg.qr(np.stack(columns, axis=1))[0]
        white = known.whiten @ base
        white -= known.ones[:, :, None] * np.einsum("gi,gik->gk", known.ones, white)[:, None, :]
        found.append((0.0 if knots else TREND_LINE, base, np.linalg.qr(white)[0]))
    return tuple(found)
