"""When two curves part: one change point of their difference, a jump or the beginning of a slope."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trueup.curves.statistics.departing import Departure, departure
from trueup.curves.statistics.envelope import window_of
from trueup.curves.statistics.growing import Growth, growth
from trueup.curves.statistics.noise import Autoregression, come_back, filled, memory, outliers
from trueup.curves.statistics.trend import Trended
from trueup.curves.thresholds import (
    JUMP_SHARE,
    ONSET_AWAY,
    ONSET_EDGE,
    ONSET_FEWEST,
    ONSET_GROWTH,
    ONSET_LEVEL,
    ONSET_NOTHING,
    ONSET_SETTLED,
    ONSET_TAKEN,
    QUIET_NOISE,
    QUIET_SHARE,
)
from trueup.types.arrays import Floats, Ints

_Found = TypeVar("_Found", Departure, Growth)
_PARTS, _FEWEST_OF_A_PART = 40, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """The step a difference changes at, and how."""

    index: int
    step: int
    earliest: int
    """the step before which it did not change, but for a chance of one in twenty"""
    latest: int
    """the step after which it did not begin to change, but for a chance of one in twenty"""
    shape: str
    """``jump`` or ``slope``"""
    before: float
    """mean difference before it"""
    after: float
    """mean difference after it; of a slope, at the end"""
    per_step: float
    """mean growth a step after it; 0 of a jump"""
    statistic: float
    """largest excursion of the cumulated difference, in units of a Brownian bridge"""
    p_value: float
    comes_back: bool = False
    """whether it is a jump of a wave: the other side has stretches as far, and as long"""
    has_trend: bool = False
    """whether trend and noise weighed against each other leave no doubt of a trend"""

    @property
    def is_sure(self) -> bool:
        """Whether the change is more than the noise explains."""
        return self.p_value < ONSET_LEVEL or self.has_trend

    @property
    def grows(self) -> bool:
        """Whether the difference becomes much larger in size after it."""
        return abs(self.before) < ONSET_GROWTH * abs(self.after)

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self) | {"is_sure": self.is_sure, "grows": self.grows}


def onset(
    difference: Floats, steps: Ints, bad: NDArray[np.bool_] | None = None, noise: Trended | None = None
) -> Onset | None:
    """The likeliest change point; None of too few steps.

    A least-squares change over all steps and both shapes says whether there is one: by the CUSUM of the
    difference against a Brownian bridge, scaled by the long-run variance of what is left when the fit is
    taken away, or by ``noise``. Where it is sure, :mod:`~trueup.curves.statistics.departing` says where, or
    :mod:`~trueup.curves.statistics.growing` of a slope that one law describes from end to end.
    ``bad``: the outliers, where they are known already.
    """
    num = len(difference)
    if num < ONSET_FEWEST:
        return None
    bad = outliers(difference) if bad is None else bad
    y = filled(difference, bad)
    centred = y - y.mean()
    total = np.cumsum(centred)
    index, shape, fit = _fit(y, centred, total)
    rest = memory(np.where(bad, np.nan, y - fit), ~bad)
    scale = _scale(rest, num)
    excursion = float(np.abs(total).max())
    statistic = excursion / scale if scale else (math.inf if excursion > 0 else 0.0)
    p_value = _kolmogorov(statistic)
    has_trend = noise is not None and noise.is_sure
    earliest = latest = index
    if p_value < ONSET_LEVEL or has_trend:
        raw = filled(difference, ~np.isfinite(difference) | come_back(difference))
        place = _placed(raw, index, quiet_until(raw, index))
        index, earliest, latest, shape = place.index, place.earliest, place.latest, place.shape
    sides = _each_side(difference, index)
    before, after, per_step = _sizes(sides, index, shape)
    return Onset(
        index=index,
        step=int(steps[index]),
        earliest=int(steps[earliest]),
        latest=int(steps[latest]),
        shape=shape,
        before=before,
        after=after,
        per_step=per_step,
        statistic=statistic,
        p_value=p_value,
        comes_back=shape == "jump" and _comes_back(sides, index, before, after),
        has_trend=has_trend,
    )


def moved(found: Onset, difference: Floats, steps: Ints, index: int) -> Onset:
    """The same change, told to begin at ``index`` at the latest: its sizes are those around that step."""
    step = int(steps[index])
    before, after, per_step = _sizes(_each_side(difference, index), index, found.shape)
    return replace(
        found,
        index=index,
        step=step,
        earliest=min(found.earliest, step),
        latest=step,
        before=before,
        after=after,
        per_step=per_step,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a change is, and how; indices."""

    index: int
    earliest: int
    latest: int
    shape: str


def _placed(raw: Floats, coarse: int, quiet: int) -> _Place:
    """The change of ``raw`` (finite), told without its first ``quiet`` steps; with them where it is found too
    near to them."""
    index = earliest = latest = coarse
    bend = _moved(departure(raw[quiet:], coarse - quiet), quiet)
    settled = False
    if bend is not None and _is_before(raw, index, bend.index):
        index, earliest, latest = bend.index, bend.earliest, bend.latest
        settled = _is_settled((latest - earliest) / len(raw))
    shape = _shape(raw, index)
    slow = _moved(growth(raw[quiet:]), quiet) if shape == "slope" and not settled else None
    if slow is not None and _is_before(raw, index, slow.index) and (bend is None or slow.index <= bend.gone):
        index, earliest, latest = slow.index, slow.earliest, slow.latest
    if quiet > QUIET_SHARE * index:
        return _placed(raw, coarse, 0)
    return _Place(index=index, earliest=earliest, latest=latest, shape=shape)


def quiet_until(values: Floats, before: int) -> int:
    """Steps at the beginning whose noise is far below that of all later ones; 0 where they are too near to
    ``before``, the change.

    Noise is told from what changes from one step to the next, over fortieths of the run.
    """
    width = max(_FEWEST_OF_A_PART, len(values) // _PARTS)
    num = (len(values) - 1) // width
    if num < 2:
        return 0
    sizes = np.median(np.abs(np.diff(values))[: num * width].reshape(num, width), axis=1)
    later = np.array([np.median(sizes[at:]) for at in range(num)])
    quiet = int(np.argmax(sizes >= QUIET_NOISE * later)) * width
    return quiet if quiet <= QUIET_SHARE * before else 0


def _moved(found: _Found | None, steps: int) -> _Found | None:
    """The same place in values that begin ``steps`` earlier."""
    if found is None or not steps:
        return found
    names = [one.name for one in fields(found)]
    return replace(found, **{name: getattr(found, name) + steps for name in names})


def _fit(y: Floats, centred: Floats, total: Floats) -> tuple[int, str, Floats]:
    """Least squares over all steps and both shapes."""
    num = len(y)
    edge = max(2, int(ONSET_EDGE * num))
    at = np.arange(edge, num - edge)
    jump = total[at - 1] ** 2 * (num / (at * (num - at)))
    slope, product, spread = _slopes(centred, at)
    if jump.max() >= slope.max():
        index = int(at[jump.argmax()])
        return index, "jump", np.where(np.arange(num) < index, y[:index].mean(), y[index:].mean())
    best = int(slope.argmax())
    index = int(at[best])
    ramp = float(product[best] / spread[best]) * np.maximum(np.arange(num) - index, 0)
    return index, "slope", float((y - ramp).mean()) + ramp


def _is_settled(share: float) -> bool:
    """Whether the first steps tell an onset to so small a share of all steps that no law of the whole run can
    tell it better."""
    return share <= ONSET_SETTLED


def _is_before(y: Floats, index: int, other: int) -> bool:
    """Whether nothing has changed from ``index`` to ``other``, compared with what changes in all."""
    if other <= index:
        return True
    before, after = float(np.mean(y[:index])), float(np.mean(y[other:]))
    return abs(float(np.mean(y[index:other])) - before) < ONSET_AWAY * abs(after - before)


def _shape(y: Floats, index: int) -> str:
    """A jump has most of its size a hundredth of the run after it began, and none as long before."""
    window = window_of(len(y))
    begin, soon = y[max(0, index - 2 * window) : index - window], y[index + window : index + 2 * window]
    if not len(soon) or not len(begin):
        return "jump"
    moved = float(np.mean(y[-window:])) - float(np.mean(y[:index]))
    return (
        "jump"
        if (soon.mean() - begin.mean()) * math.copysign(1.0, moved) > JUMP_SHARE * abs(moved)
        else "slope"
    )


def _each_side(difference: Floats, index: int) -> Floats:
    """The steps before and after a change without what stands out among them: a jump is no outlier."""
    sides = (difference[:index], difference[index:])
    return np.concatenate([filled(side, outliers(side)) for side in sides if len(side)])


def _sizes(y: Floats, index: int, shape: str) -> tuple[float, float, float]:
    """Mean before, mean after (of a slope: at the end), and mean growth a step."""
    before = float(y[:index].mean()) if index else float(y[0])
    if shape == "jump":
        soon = index + min(window_of(len(y)), (len(y) - index) // 2)
        return before, float(y[soon:].mean()), 0.0
    after = float(y[-min(window_of(len(y)), len(y) - index) :].mean())
    return before, after, (after - before) / max(1, len(y) - 1 - index)


def _comes_back(y: Floats, index: int, before: float, after: float) -> bool:
    """Whether a jump is a piece of a wave: the longer side has stretches as long as the shorter one that are
    nearer to its level than to their own."""
    is_early = 2 * index <= len(y)
    own, rest = (y[:index], y[index:]) if is_early else (y[index:], y[:index])
    level, other = (before, after) if is_early else (after, before)
    if len(own) < window_of(len(y)):
        return False
    num = len(rest) // len(own)
    means = rest[: num * len(own)].reshape(num, len(own)).mean(axis=1)
    return bool((np.abs(means - level) < np.abs(means - other)).any())


def _scale(rest: Autoregression, num: int) -> float:
    """How far the noise that is left takes the cumulated difference of ``num`` steps."""
    taken = 1 + ONSET_TAKEN / rest.freedom(num)
    return math.sqrt(taken * rest.long_run_variance * num) if rest.long_run_variance > 0 else 0.0


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
