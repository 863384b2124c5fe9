"""When two curves part: one change point of their difference, a step or the beginning of a slope."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.curves.statistics.noise import Memory, memory, outliers
from trueup.curves.thresholds import ONSET_EDGE, ONSET_FEWEST, ONSET_LEVEL, ONSET_NOTHING, ONSET_TAKEN
from trueup.types.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """The step a difference changes at, and how."""

    index: int
    step: int
    shape: str
    """``jump`` or ``slope``"""
    before: float
    """mean difference before it"""
    after: float
    """mean difference after it; of a slope, the end of the fitted line"""
    per_step: float
    """growth a step after it; 0 of a jump"""
    statistic: float
    """largest excursion of the cumulated difference, in units of a Brownian bridge"""
    p_value: float

    @property
    def is_sure(self) -> bool:
        """Whether the change is more than the noise explains."""
        return self.p_value < ONSET_LEVEL

    @property
    def grows(self) -> bool:
        """Whether the difference becomes larger in size after it."""
        return abs(self.after) > abs(self.before)

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self) | {"is_sure": self.is_sure, "grows": self.grows}


def onset(difference: Floats, steps: Ints, bad: NDArray[np.bool_] | None = None) -> Onset | None:
    """The likeliest change point, by least squares over all steps and both shapes; None of too few steps.

    Its significance is that of the CUSUM against a Brownian bridge, scaled by the long-run variance of what
    is left when the fit is taken away. ``bad``: the outliers, where they are known already.
    """
    num = len(difference)
    if num < ONSET_FEWEST:
        return None
    bad = outliers(difference) if bad is None else bad
    y = _filled(difference, bad)
    centred = y - y.mean()
    total = np.cumsum(centred)
    edge = max(2, int(ONSET_EDGE * num))
    at = np.arange(edge, num - edge)
    jump = total[at - 1] ** 2 * (num / (at * (num - at)))
    slope, product, spread = _slopes(centred, at)
    if jump.max() >= slope.max():
        index, shape = int(at[jump.argmax()]), "jump"
        before, after, growth = float(y[:index].mean()), float(y[index:].mean()), 0.0
        fit = np.where(np.arange(num) < index, before, after)
    else:
        best = int(slope.argmax())
        index, shape = int(at[best]), "slope"
        growth = float(product[best] / spread[best])
        ramp = growth * np.maximum(np.arange(num) - index, 0)
        before = float((y - ramp).mean())
        after = before + growth * (num - 1 - index)
        fit = before + ramp
    rest = memory(np.where(bad, np.nan, y - fit), ~bad)
    scale = _scale(rest, num)
    excursion = float(np.abs(total).max())
    statistic = excursion / scale if scale else (math.inf if excursion > 0 else 0.0)
    return Onset(
        index=index,
        step=int(steps[index]),
        shape=shape,
        before=before,
        after=after,
        per_step=growth,
        statistic=statistic,
        p_value=_kolmogorov(statistic),
    )


def _scale(rest: Memory, num: int) -> float:
    """How far the noise that is left takes the cumulated difference of ``num`` steps."""
    taken = 1 + ONSET_TAKEN / rest.freedom(num)
    return math.sqrt(taken * rest.long_run_variance * num) if rest.long_run_variance > 0 else 0.0


def _filled(values: Floats, bad: Bools) -> Floats:
    """Outliers replaced by the line between their neighbours."""
    if not bad.any() or bad.all():
        return np.nan_to_num(values)
    where = np.arange(len(values))
    return np.where(bad, np.interp(where, where[~bad], values[~bad]), values)


def _slopes(centred: Floats, at: Ints) -> tuple[Floats, Floats, Floats]:
    """For a line that leaves zero at each of ``at``: the squares it explains, and the sums behind them."""
    num = len(centred)
    behind = np.cumsum(centred[::-1])[::-1]
    product = np.concatenate([np.cumsum(behind[::-1])[::-1], [0.0, 0.0]])[at + 1]
    left = (num - 1 - at).astype(np.float64)
    total = left * (left + 1) / 2
    spread = left * (left + 1) * (2 * left + 1) / 6 - total**2 / num
    return product**2 / spread, product, spread


def _kolmogorov(statistic: float) -> float:
    """The probability that a Brownian bridge goes this far from zero."""
    if statistic < ONSET_NOTHING:
        return 1.0
    terms = (2 * (-1) ** (k + 1) * math.exp(-2 * (k * statistic) ** 2) for k in range(1, 30))
    return float(min(1.0, max(0.0, sum(terms))))
