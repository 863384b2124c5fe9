"""The noise of a difference: its scale, its memory from step to step, the standard error of its mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.curves.thresholds import (
    ALIKE,
    MEMORY_FEWEST,
    NORMAL_MAD,
    SPIKE_BACK,
    SPIKE_BEHIND,
    SPIKE_SIGMAS,
    SPIKE_WINDOW,
    TAIL_SIGMAS,
    TAIL_STEPS,
)
from trueup.types.arrays import Bools, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoregression:
    """A series as AR(1): ``x[t] - m = coefficient * (x[t-1] - m) + e[t]``."""

    coefficient: float
    long_run_variance: float
    """n times the variance of the mean of n steps, for large n"""

    def standard_error(self, num: int) -> float:
        """Of the mean over ``num`` steps."""
        return math.sqrt(self.long_run_variance / num) if num else math.nan

    def freedom(self, num: int) -> float:
        """Degrees of freedom of that standard error: as many as ``num`` steps are worth independent ones."""
        return max(1.0, num * (1 - self.coefficient) / (1 + self.coefficient) - 1)


def robust_scale(values: Floats) -> float:
    """1.4826 times the median distance from the median: the standard deviation, were it normal."""
    known = np.isfinite(values)
    finite = values if known.all() else values[known]
    if not len(finite):
        return math.nan
    return NORMAL_MAD * _median(np.abs(finite - _median(finite)))


def _median(values: Floats) -> float:
    """That of numpy, of numbers that are all finite: one search for the place in the middle."""
    half = len(values) // 2
    parted = np.partition(values, half)
    upper = float(parted[half])
    return upper if len(values) % 2 else (float(parted[:half].max()) + upper) / 2


def outliers(values: Floats, window: int = SPIKE_WINDOW) -> NDArray[np.bool_]:
    """Steps that stand out by six sigmas from the steps around them, or are not finite.

    Local: what a slow change of the mean moves is none. Blocks of ``window`` steps have
    each their median; the scale is that of the whole series around them.
    """
    num = len(values)
    finite = np.isfinite(values)
    padded = np.full(-(-num // window) * window, np.nan)
    padded[:num] = np.where(finite, values, np.nan)
    blocks = padded.reshape(-1, window)
    medians = np.median(blocks, axis=1)
    for at in np.flatnonzero(np.isnan(medians)):
        some = blocks[at][np.isfinite(blocks[at])]
        medians[at] = np.median(some) if len(some) else np.nan
    known = np.isfinite(medians)
    centres = (np.arange(len(blocks)) + 0.5) * window
    if known.sum() == 0:
        return ~finite
    local = np.interp(np.arange(num), centres[known], medians[known])
    rest = values - local
    scale = robust_scale(rest)
    if not scale > 0:
        out: NDArray[np.bool_] = ~finite
        return out
    size = np.abs(rest) / scale
    tail = (size > TAIL_SIGMAS).astype(np.int8)
    out = ~finite | (size > SPIKE_SIGMAS)
    if not out.any():
        return out
    for _ in range(TAIL_STEPS):
        out[1:] |= out[:-1] & (tail[1:] > 0)
    return out


def come_back(values: Floats) -> Bools:
    """The finite outliers that values come back from: where the steps before and after them have one level.

    What a difference leaps to, or blows up to, and stays at is none.
    """
    out = outliers(values, SPIKE_BEHIND)
    edges = np.flatnonzero(np.diff(out.astype(np.int8), prepend=0, append=0))
    good = np.flatnonzero(~out)
    for begin, end in edges.reshape(-1, 2).tolist():
        top = values[begin:end][np.isfinite(values[begin:end])]
        at = int(np.searchsorted(good, begin))
        before, after = values[good[max(0, at - SPIKE_BEHIND) : at]], values[good[at : at + SPIKE_BEHIND]]
        if not (len(before) and len(after) and len(top)):
            out[begin:end] = False
            continue
        level, later = float(np.median(before)), float(np.median(after))
        if abs(later - level) > SPIKE_BACK * float(np.max(np.abs(top - level))):
            out[begin:end] = False
    return out


def filled(values: Floats, bad: Bools) -> Floats:
    """Outliers replaced by the line between their neighbours."""
    if not bad.any() or bad.all():
        return np.nan_to_num(values, posinf=0.0, neginf=0.0)
    where = np.arange(len(values))
    return np.where(bad, np.interp(where, where[~bad], values[~bad]), values)


def memory(values: Floats, good: NDArray[np.bool_]) -> Autoregression:
    """Fit AR(1) to the good steps, and measure what is left by a block bootstrap.

    The residuals' long-run variance is that of a circular block bootstrap with blocks of n^(1/3): its exact
    expectation over all draws, so that no random number enters; then both are put together (a prewhitened
    block bootstrap).
    """
    num = int(good.sum())
    if num < MEMORY_FEWEST:
        return Autoregression(coefficient=0.0, long_run_variance=math.nan)
    x = np.where(good, values, 0.0) - np.where(good, values[good].mean(), 0.0)
    coefficient = _coefficient(x, good, num)
    pairs = good[1:] & good[:-1]
    rest = x[1:][pairs] - coefficient * x[:-1][pairs]
    length = max(1, round(len(rest) ** (1 / 3)))
    variance = _block_variance(rest - rest.mean(), length)
    return Autoregression(coefficient=coefficient, long_run_variance=variance / (1 - coefficient) ** 2)


def _coefficient(x: Floats, good: NDArray[np.bool_], num: int) -> float:
    """How much of ``x`` (0 where it is not good) is left a step later, corrected for Kendall's bias.

    Where steps are much alike it is told from covariances at lags 1 to 3: independent noise of single steps,
    such
    as small spikes, makes neighbours less alike than the slow part is, and the standard error too small.
    """
    power = [_covariance(x, good, lag) for lag in range(4)]
    raw = power[1] / power[0] if power[0] else 0.0
    if raw > ALIKE and power[2] > 0:
        raw = (power[2] + power[3]) / (power[1] + power[2])
    return min(max(raw + (1 + 3 * raw) / num, -0.95), 1 - 2 / num)


def _covariance(x: Floats, good: NDArray[np.bool_], lag: int) -> float:
    if lag == 0:
        return float(x @ x) / max(1, int(good.sum()))
    return float(x[lag:] @ x[:-lag]) / max(1, int((good[lag:] & good[:-lag]).sum()))


def _block_variance(rest: Floats, length: int) -> float:
    """Mean square of the sums of all circular blocks, over their length."""
    wrapped = np.concatenate([[0.0], np.cumsum(np.concatenate([rest, rest[: length - 1]]))])
    sums = wrapped[length:] - wrapped[:-length]
    return float(sums @ sums) / len(sums) / length * len(rest) / max(1, len(rest) - length)


def two_sided(z: float, freedom: float = math.inf) -> float:
    """The probability of a number at least as far from 0: normal, or Student's with ``freedom`` degrees.

    Student's by Wallace's transformation to a normal number (Annals of Mathematical Statistics 30, 1959).
    """
    if not math.isfinite(z):
        return 0.0 if math.isinf(z) else 1.0
    if math.isfinite(freedom):
        shrunk = math.sqrt(freedom * math.log1p(z * z / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
        return math.erfc(shrunk / math.sqrt(2))
    return math.erfc(abs(z) / math.sqrt(2))


def two_sided_each(z: Floats, freedom: Floats) -> Floats:
    """The same of each pair, all of finite freedom."""
    shrunk = np.sqrt(freedom * np.log1p(z * z / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return np.array([math.erfc(one) for one in (shrunk / math.sqrt(2)).tolist()])
