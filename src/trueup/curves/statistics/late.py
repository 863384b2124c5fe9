"""The late part of training: how large the gap is there, and whether it grows."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.curves.statistics.centred import centre
from trueup.curves.statistics.noise import memory, outliers, two_sided
from trueup.curves.thresholds import LATE_FEWEST, LATE_LEVEL, LATE_MOVES, LATE_SHARE
from trueup.types.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """The last fifth of the steps."""

    first_step: int
    gap: float
    """mean of target - reference"""
    standard_error: float
    relative_gap: float
    """over the mean of the reference there"""
    p_value: float
    per_1000_steps: float
    """slope of the difference"""
    trend_p_value: float
    num_steps: int
    """in steps' numbers, over which it is measured"""

    @property
    def trend(self) -> str:
        """``grows``, ``shrinks`` or ``steady``: it moves by no more than its noise, or than a tenth of it."""
        moved = abs(self.per_1000_steps) / 1000 * self.num_steps
        if self.trend_p_value >= LATE_LEVEL or moved < LATE_MOVES * abs(self.gap):
            return "steady"
        return "grows" if self.per_1000_steps * (self.gap or self.per_1000_steps) > 0 else "shrinks"

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self) | {"trend": self.trend}


def late(difference: Floats, reference: Floats, steps: Ints, bad: NDArray[np.bool_] | None = None) -> Late:
    """Measure the last fifth. ``bad``: the outliers, where they are known already."""
    begin = len(difference) - max(LATE_FEWEST, int(len(difference) * LATE_SHARE))
    begin = max(0, begin)
    tail, there = difference[begin:], steps[begin:]
    out = outliers(tail) if bad is None else bad[begin:]
    found = centre(tail, out)
    slope, p_value = _slope(tail, there, ~out)
    level = reference[begin:]
    level = level[np.isfinite(level)]
    return Late(
        first_step=int(there[0]),
        gap=found.mean,
        standard_error=found.standard_error,
        relative_gap=found.mean / abs(float(level.mean())) if len(level) and level.mean() else math.nan,
        p_value=found.p_value,
        per_1000_steps=1000 * slope,
        trend_p_value=p_value,
        num_steps=int(there[-1] - there[0]) + 1,
    )


def _slope(values: Floats, steps: Ints, good: NDArray[np.bool_]) -> tuple[float, float]:
    """Least-squares slope a step, and the probability of one so steep by the noise alone."""
    if good.sum() < LATE_FEWEST:
        return 0.0, 1.0
    x = np.asarray(steps, float)
    x = x - x[good].mean()
    spread = float(x[good] @ x[good])
    slope = float(x[good] @ (values[good] - values[good].mean())) / spread
    rest = memory(values - slope * x, good)
    if not rest.long_run_variance > 0:
        return slope, 0.0 if slope else 1.0
    return slope, two_sided(slope / math.sqrt(rest.long_run_variance / spread))
