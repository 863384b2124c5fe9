"""Is a difference centred on zero? Its signed mean against the error that trend and memory leave it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.curves.statistics.noise import memory, outliers, two_sided
from trueup.curves.statistics.trend import Trended, trended
from trueup.curves.thresholds import (
    CENTRED_FEWEST,
    CENTRED_LEVEL,
    INTERVAL_LEVEL,
    RUNS_FEWEST,
    RUNS_MEMORY,
)
from trueup.types.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Centre:
    """The signed mean of a difference."""

    mean: float
    """over the steps that are no outliers"""
    standard_error: float
    low: float
    high: float
    """interval of confidence 1 - INTERVAL_LEVEL, 95 %"""
    p_value: float
    """of a mean so far from zero, were the difference centred"""
    autocorrelation: float
    num_steps: int
    num_outliers: int
    num_runs: int
    expected_runs: float
    runs_p_value: float
    """of so few or so many changes of sign, between block means far enough apart to be independent"""

    @property
    def is_centred(self) -> bool:
        """Whether the mean is within what its noise explains."""
        return not self.p_value < CENTRED_LEVEL

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self) | {"is_centred": self.is_centred}


def centre(difference: Floats, bad: NDArray[np.bool_] | None = None, noise: Trended | None = None) -> Centre:
    """Test whether the mean of a difference is zero.

    ``bad``: its outliers, ``noise``: its trend and noise, where they are known already.

    The standard error is that of :mod:`~trueup.curves.statistics.trend`; outliers are left out of the mean,
    for one spike can hide or feign an offset.
    """
    bad = outliers(difference) if bad is None else bad
    good = ~bad
    num = int(good.sum())
    if num < CENTRED_FEWEST:
        return _unknown(difference[good], int(bad.sum()))
    mean = float(difference[good].mean())
    noise = trended(difference, good) if noise is None else noise
    low, high = (0.0, 0.0) if noise is None else noise.interval(INTERVAL_LEVEL)
    runs, expected, runs_p = _runs(difference[good])
    return Centre(
        mean=mean,
        standard_error=0.0 if noise is None else noise.standard_error,
        low=mean + low,
        high=mean + high,
        p_value=(0.0 if mean else 1.0) if noise is None else noise.p_value(mean),
        autocorrelation=memory(difference, good).coefficient,
        num_steps=num,
        num_outliers=int((bad & np.isfinite(difference)).sum()),
        num_runs=runs,
        expected_runs=expected,
        runs_p_value=runs_p,
    )


def _unknown(values: Floats, num_outliers: int) -> Centre:
    """Of too few steps."""
    return Centre(
        mean=float(np.mean(values)) if len(values) else math.nan,
        standard_error=math.nan,
        low=math.nan,
        high=math.nan,
        p_value=1.0,
        autocorrelation=0.0,
        num_steps=len(values),
        num_outliers=num_outliers,
        num_runs=0,
        expected_runs=0.0,
        runs_p_value=1.0,
    )


def _runs(values: Floats) -> tuple[int, float, float]:
    """Wald and Wolfowitz: runs of one sign around zero, among means of blocks that forget each other."""
    largest = float(np.abs(values).max(initial=0.0))
    values = (
        values / largest if largest > 0 else values
    )  # runs and memory are of signs and shapes: no overflow
    x = values - values.mean()
    power = float(x @ x)
    rho = min(max(float(x[1:] @ x[:-1]) / power if power else 0.0, 0.0), 0.9999)
    block = 1 if rho < RUNS_MEMORY else max(1, round(4 * (1 + rho) / (1 - rho)))
    whole = len(values) // block
    if whole < RUNS_FEWEST:
        return 0, 0.0, 1.0
    means = values[: whole * block].reshape(whole, block).mean(axis=1)
    signs = means[means != 0] > 0
    above = int(signs.sum())
    below = len(signs) - above
    if not above or not below:
        return 1, 1.0, 2.0 ** (1 - len(signs)) if len(signs) else 1.0
    runs = 1 + int((signs[1:] != signs[:-1]).sum())
    total = above + below
    expected = 1 + 2 * above * below / total
    variance = (expected - 1) * (expected - 2) / (total - 1)
    return runs, expected, two_sided((runs - expected) / math.sqrt(variance)) if variance > 0 else 1.0
