"""How often the interval of the signed mean covers the truth, and how wide it is: a small version of what
``benchmarks/curves_coverage.py`` measures. The truth is the mean of the systematic part over the steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.curves.simulating import autoregressive
from trueup.curves.statistics import memories, trend
from trueup.curves.statistics.trend import Trended, trended
from trueup.types.arrays import Floats


def systematic(shape: str, num: int, random: np.random.Generator) -> Floats:
    """A systematic part of size 0.1."""
    at, begin = np.arange(num), num * random.uniform(0.1, 0.5)
    if shape == "ramp":
        return 0.1 * np.clip((at - begin) / (num * random.uniform(0.1, 0.4)), 0, 1)
    return {
        "flat": np.full(num, 0.02),
        "line": 0.1 * at / num,
        "jump": 0.1 * (at >= begin),
        "bend": 0.1 * -np.expm1(-np.maximum(at - begin, 0) / num * 8),
    }[shape]


Interval = Callable[[Floats], Trended | None]


def ours(values: Floats) -> Trended | None:
    """As ``trueup curves`` weighs trend and memory."""
    return trended(values, np.ones(len(values), bool))


def covered(
    shape: str,
    coefficient: float,
    *,
    num: int = 2000,
    sigma: float = 0.02,
    cases: int = 50,
    seed: int = 0,
    interval: Interval = ours,
) -> tuple[float, float]:
    """Share of 95 % intervals that cover the truth, and their median width over that of one who knows it all:
    the shape and the noise. A coefficient of 1 is a random walk."""
    random = np.random.default_rng(seed)
    hits, widths = 0, []
    for _ in range(cases):
        truth = systematic(shape, num, random)
        if coefficient == 1:
            noise = np.cumsum(random.standard_normal(num)) * sigma / 20
            error = sigma / 20 * math.sqrt(num / 3)
        else:
            noise = autoregressive(num, coefficient, sigma, random)
            lags = np.arange(1, num)
            error = sigma * math.sqrt((1 + 2 * ((1 - lags / num) * coefficient**lags).sum()) / num)
        found = interval(truth + noise)
        assert found is not None
        low, high = found.interval(0.05)
        hits += low <= -noise.mean() <= high
        widths.append((high - low) / (2 * 1.96 * error))
    return hits / cases, float(np.median(widths))


@pytest.mark.parametrize(
    ("shape", "coefficient"),
    [("flat", 0.0), ("flat", 0.9), ("line", 0.9), ("jump", 0.0), ("bend", 0.9), ("ramp", 0.0), ("ramp", 0.9)],
)
def test_intervals_cover_the_truth_and_are_not_wide(shape: str, coefficient: float) -> None:
    share, width = covered(shape, coefficient)
    assert share >= 0.9
    assert width < 2


def test_a_random_walk_is_covered() -> None:
    share, width = covered("flat", 1.0)
    assert share >= 0.85
    assert width < 2


def test_long_memory_in_a_long_run() -> None:
    share, width = covered("flat", 0.99, num=8000)
    assert share >= 0.9
    assert width < 2


def test_noise_that_remembers_a_tenth_of_the_run_is_no_walk() -> None:
    """A walk's systematic part is what it began with: its interval is not as wide as the walk went."""
    share, width = covered("flat", 0.99, num=1000, seed=5)
    assert share >= 0.9
    assert width < 2.2


def test_a_trend_is_sure_where_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not in noise with a memory, where its probability comes near."""
    at = np.arange(1500)
    for seed in range(8):
        noise = autoregressive(1500, 0.5, 0.02, np.random.default_rng(seed))
        for shape in (0.03 * (at > 700), 0.05 * at / 1500, np.zeros(1500)):
            found = trended(shape + noise, np.ones(1500, bool))
            assert found is not None
            assert found.is_sure == bool(shape.any())
            with monkeypatch.context() as moved:
                moved.setattr(trend, "TREND_SURE", 0.02)
                doubtful = found.is_sure
            with monkeypatch.context() as moved:
                moved.setattr(trend, "TREND_SURE", 1.0)
                assert not found.is_sure
            assert doubtful or not shape.any()


def test_the_interval_holds_the_mean_itself() -> None:
    """Also of a walk, which began elsewhere."""
    random = np.random.default_rng(4)
    for _ in range(20):
        found = trended(np.cumsum(random.standard_normal(600)), np.ones(600, bool))
        assert found is not None
        low, high = found.interval(0.05)
        assert low <= 0 <= high
        assert found.p_value(1e9) < 0.001
        assert found.p_value(0.0) <= 1


def test_the_p_value_and_the_interval_agree() -> None:
    random = np.random.default_rng(5)
    for num in (200, 1000):
        for offset in (0.0, 0.05, 0.2):
            values = offset + autoregressive(num, 0.8, 1.0, random)
            found = trended(values, np.ones(num, bool))
            assert found is not None
            mean = float(values.mean())
            low, high = found.interval(0.05)
            assert (mean + low <= 0 <= mean + high) == (found.p_value(mean) >= 0.05)


def test_a_smooth_difference_has_a_narrow_interval() -> None:
    """It was -19 to +19 on a difference of 0.1."""
    at = np.arange(3000)
    for values in (0.1 * at / 3000, 0.1 / (1 + np.exp(-(at - 1500) / 200)), 0.1 * np.sqrt(at / 3000)):
        found = trended(values, np.ones(3000, bool))
        assert found is not None
        low, high = found.interval(0.05)
        assert high - low < 0.02
        assert found.is_sure


@pytest.mark.parametrize(
    ("name", "value", "shape", "coefficient"),
    [
        ("TREND_PRICE", 0.3, "flat", 1.0),
        ("TREND_WALK", 0.05, "flat", 1.0),
        ("TREND_ODDS", -6.0, "flat", 1.0),
        ("TREND_WHITE", 0.01, "flat", 0.0),
        ("TREND_UNDER_WALK", 1.0, "line", 1.0),
        ("TREND_WALK_OPEN", 5.0, "line", 1.0),
    ],
)
def test_an_entry_that_moves_loses_coverage(
    name: str, value: float, shape: str, coefficient: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random walks pass for trends, or intervals of white noise become wider than need be."""

    def widths() -> Floats:
        random = np.random.default_rng(1)
        found = []
        for _ in range(8):
            noise = random.standard_normal(1000)
            if coefficient == 1:
                noise = np.cumsum(noise) / 20
            known = trended(systematic(shape, 1000, random) + noise, np.ones(1000, bool))
            assert known is not None
            low, high = known.interval(0.05)
            found.append(high - low)
        return np.array(found)

    before = widths()
    for module in (trend, memories):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)
    for cached in (memories.memories, memories.pilots, memories.splines):
        cached.cache_clear()
    moved = widths()
    monkeypatch.undo()
    for cached in (memories.memories, memories.pilots, memories.splines):
        cached.cache_clear()
    assert (moved.mean() > before.mean()) == (coefficient == 0)
    assert moved.mean() != before.mean()
