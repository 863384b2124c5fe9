"""What is measured of a difference is what was put into it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.curves.simulating import autoregressive
from trueup.curves.statistics.centred import centre
from trueup.curves.statistics.envelope import (
    Band,
    Envelope,
    band,
    band_spread,
    envelope,
    mean_around,
    moving_mean,
    repeat_distances,
)
from trueup.curves.statistics.frozen import frozen
from trueup.curves.statistics.health import overflows, plateaus, rates
from trueup.curves.statistics.late import late
from trueup.curves.statistics.noise import memory, outliers, two_sided
from trueup.curves.statistics.onset import onset
from trueup.curves.statistics.spikes import heights, spikes
from trueup.curves.statistics.trend import trended


def noise(num: int = 4000, coefficient: float = 0.8, sigma: float = 0.01, seed: int = 0) -> np.ndarray:
    return autoregressive(num, coefficient, sigma, np.random.default_rng(seed))


def steps(num: int) -> np.ndarray:
    return np.arange(1, num + 1)


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.9])
def test_the_standard_error_is_that_of_many_repeats(coefficient: float) -> None:
    found = [centre(noise(2000, coefficient, seed=seed)) for seed in range(100)]
    true = np.std([one.mean for one in found])
    assert np.mean([one.standard_error for one in found]) == pytest.approx(true, rel=0.15)
    assert np.mean([not one.is_centred for one in found]) <= 0.03


def test_an_offset_of_five_errors_is_seen_and_its_sign_told() -> None:
    for sign in (1, -1):
        d = noise()
        found = centre(d - d.mean() + sign * 5 * centre(d).standard_error)
        assert not found.is_centred
        assert np.sign(found.mean) == sign
        assert found.low < found.mean < found.high
        assert found.low * found.high > 0


def test_spikes_do_not_hide_or_feign_an_offset() -> None:
    d = noise()
    spiked = d.copy()
    spiked[[500, 1500, 2500]] += 5.0
    assert centre(spiked).mean == pytest.approx(centre(d).mean, abs=2e-4)
    assert centre(spiked).num_outliers >= 3
    assert outliers(spiked)[[500, 1500, 2500]].all()


def test_a_slow_change_of_the_mean_is_no_outlier() -> None:
    assert outliers(noise() + np.linspace(0, 1, 4000)).mean() < 0.001


def test_runs_around_zero() -> None:
    assert centre(noise(coefficient=0.0)).runs_p_value > 0.01
    assert centre(noise(coefficient=0.0) + np.linspace(-0.05, 0.05, 4000)).runs_p_value < 1e-6


def test_differences_that_are_all_the_same() -> None:
    zero = centre(np.zeros(100))
    assert (zero.is_centred, zero.mean, zero.standard_error) == (True, 0.0, 0.0)
    assert not centre(np.full(100, 0.25)).is_centred
    assert centre(np.array([1.0, 2.0])).is_centred  # too few to say


def test_the_interval_misses_as_often_as_it_says() -> None:
    found = trended(noise(1000, 0.5), np.ones(1000, bool))
    assert found is not None
    for level in (0.3, 0.05, 0.001):
        low, high = found.interval(level)
        assert found.p_value(-low) == pytest.approx(level, rel=1e-6)
        assert found.p_value(-high) == pytest.approx(level, rel=1e-6)


def test_student_is_close_to_the_tables() -> None:
    assert two_sided(2.571, 5) == pytest.approx(0.05, rel=0.02)
    assert two_sided(2.750, 30) == pytest.approx(0.01, rel=0.02)


def test_memory_is_the_coefficient_put_in() -> None:
    d = noise(20_000, 0.9)
    assert memory(d, np.ones(len(d), bool)).coefficient == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("shape", ["jump", "slope"])
def test_a_change_is_found_where_it_is(shape: str) -> None:
    d = noise()
    after = np.maximum(np.arange(4000) - 2500, 0)
    d += 0.05 * (after > 0) if shape == "jump" else 0.0002 * after
    found = onset(d, steps(4000))
    assert found is not None
    assert found.is_sure
    assert found.shape == shape
    assert abs(found.index - 2500) <= 80
    assert found.grows


def test_no_change_is_found_where_there_is_none() -> None:
    sure = [onset(noise(seed=seed), steps(4000)).is_sure for seed in range(60)]  # type: ignore[union-attr]
    assert sum(sure) <= 1
    assert onset(noise(20), steps(20)) is None


def test_spikes_of_the_data_are_in_both_curves() -> None:
    base = 3 + noise(coefficient=0)
    mine, theirs = base + noise(seed=1, coefficient=0), base + noise(seed=2, coefficient=0)
    mine[[1000, 1001, 3000]] += 1.0
    theirs[[1001, 2000]] += 1.0
    found = spikes(heights(mine), heights(theirs), steps(4000))
    assert (found.both, found.target_only, found.reference_only) == ((1001,), (3001,), (2001,))
    assert found.largest is not None
    assert found.largest > 20


def test_the_late_gap_and_its_trend() -> None:
    level = np.full(4000, 2.0)
    found = late(noise() + 0.1, level, steps(4000))
    assert found.gap == pytest.approx(0.1, abs=0.01)
    assert found.relative_gap == pytest.approx(0.05, abs=0.005)
    assert (found.trend, found.first_step) == ("steady", 3201)
    assert late(noise() + np.linspace(0, 0.5, 4000), level, steps(4000)).trend == "grows"
    assert late(noise() + np.linspace(0.5, 0, 4000), level, steps(4000)).trend == "shrinks"


def test_overflow_is_a_falling_scale_or_a_skipped_update() -> None:
    scale = np.array([4.0, 4.0, 2.0, 2.0, 4.0, 4.0])
    skipped = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    assert np.flatnonzero(overflows(scale, None)).tolist() == [2]
    assert np.flatnonzero(overflows(scale, skipped)).tolist() == [2, 5]
    assert overflows(None, None).tolist() == []


def test_a_plateau_is_one_only_while_the_other_learns() -> None:
    falls = 5 * np.exp(-np.arange(2000) / 800) + 1 + noise(2000)
    stuck = np.where(np.arange(2000) < 500, falls, falls[500]) + noise(2000, seed=3)
    found, _ = plateaus(stuck, falls, steps(2000))
    assert found is not None
    assert 450 <= found.step <= 600
    assert found.level == pytest.approx(falls[500], abs=0.05)
    assert plateaus(falls, falls, steps(2000)) == (None, None)
    assert plateaus(stuck, stuck, steps(2000)) == (None, None)


def test_learning_rates_as_logged() -> None:
    rate = np.linspace(0, 1e-3, 100)
    assert rates(rate, rate * (1 + 1e-4), steps(100)).first_different is None  # type: ignore[union-attr]
    other = rate.copy()
    other[60:] *= 1.1
    assert rates(other, rate, steps(100)).first_different == 61  # type: ignore[union-attr]
    assert rates(np.zeros(9), np.zeros(9), steps(9)).all_zero  # type: ignore[union-attr]
    assert rates(None, rate, steps(100)) is None


def test_each_step_is_a_first_step_while_nothing_is_learnt() -> None:
    reference = np.full(1000, 10.0)
    target = reference + 1e-3 * np.random.default_rng(0).standard_normal(1000)
    target[400] += 0.03
    found = frozen(
        loss=(target, reference), norm=None, steps=steps(1000), threshold_abs=5e-3, threshold_rel=5e-3
    )
    assert (found.max_loss_step, found.num_beyond, found.outlying_steps) == (401, 0, (401,))
    target[400] += 0.1
    found = frozen(
        loss=(target, reference), norm=None, steps=steps(1000), threshold_abs=5e-3, threshold_rel=5e-3
    )
    assert found.num_beyond == 1


def judged(target: np.ndarray, repeats: np.ndarray) -> tuple[Band, Envelope]:
    """The band of the repeats and what it says of the target."""
    middle = repeats.mean(axis=0)
    room = band(target - middle, middle, band_spread(repeats, middle), floor_abs=0.01, floor_rel=0.01)
    return room, envelope(target, repeats, room, steps(len(target)), repeat_distances(repeats))


def test_the_band_widens_to_the_repeats() -> None:
    trend = np.full(2000, 3.0)
    wide = np.stack([trend + noise(2000, 0.99, 0.2, seed) for seed in range(3)])
    narrow = np.stack([trend + noise(2000, 0.5, 0.001, seed) for seed in range(3)])
    target = trend + noise(2000, 0.5, 0.001, 9)
    for repeats, origin in ((wide, "repeats"), (narrow, "standard"), (narrow[:1], "standard")):
        room, found = judged(target, repeats)
        assert room.origin == origin
        assert found.first_exceedance is None
    _, found = judged(target + 0.5 * (np.arange(2000) > 1200), narrow)
    assert found.first_exceedance is not None
    assert abs(found.first_exceedance - 1200) < 30


def test_a_repeat_lies_inside_the_others_as_often_as_expected() -> None:
    runs = np.stack([3 + noise(20_000, 0.5, seed=seed) for seed in range(4)])
    _, found = judged(runs[3], runs[:3])
    assert found.expected_inside == 0.5
    assert found.inside == pytest.approx(0.5, abs=0.02)


def test_distances_between_repeats() -> None:
    runs = np.array([[0.0, 0.0], [1.0, -1.0], [2.0, 2.0]])
    assert repeat_distances(runs) == (2.0, 2.0)
    assert repeat_distances(runs[:1]) == (None, None)


@given(st.integers(1, 40), st.integers(1, 60))
def test_a_moving_mean_of_one_number_is_that_number(num: int, window: int) -> None:
    assert moving_mean(np.full(num, 2.5), window) == pytest.approx(np.full(num, 2.5))


@given(st.lists(st.sampled_from([1.0, 2.0, 5.0, np.nan]), min_size=1, max_size=30), st.integers(1, 40))
def test_a_moving_mean_is_the_mean_around_each_step(values: list[float], window: int) -> None:
    x = np.array(values)
    around = [mean_around(x, at, window) for at in range(len(x))]
    assert moving_mean(x, window) == pytest.approx(around, nan_ok=True)
    known = x[max(0, -window // 2) : window - window // 2]
    known = known[np.isfinite(known)]
    assert around[0] == pytest.approx(known.mean() if len(known) else np.nan, nan_ok=True)


def test_a_height_is_over_the_steps_before() -> None:
    x = noise(400)
    x[200], x[300] = np.inf, np.nan
    found = heights(x)
    for at in (15, 16, 60, 150):
        before = x[max(0, at - 128) : at]
        wanted = (x[at] - before.mean()) / before.std() if at >= 16 else 0.0
        assert found[at] == pytest.approx(wanted, rel=1e-6)
    assert found[200] == np.inf
    assert found[300] == 0
