"""A loss that is the other's times a number; spikes of the reference; where runs part whose noise grows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.curves.simulating import Truth, simulate
from tests.curves.test_each_reason import CENTRED, failing, said_by, seen
from tests.diagnosing.made_steps import codes_of
from trueup.curves.judgement import judge
from trueup.curves.statistics.excursions import excursions, spikes_of_reference
from trueup.curves.statistics.factor import Factor, factor
from trueup.curves.statistics.onset import onset, quiet_until
from trueup.types.arrays import Floats
from trueup.types.codes import CurvesCode as Curves
from trueup.wording import text

NUM = 3000
STEPS = np.arange(NUM)


def falling(seed: int = 0) -> Floats:
    noise = 0.04 * np.random.default_rng(seed).standard_normal(NUM)
    return np.asarray(2.0 + 8.0 * np.exp(-STEPS / 150) + noise)


def small(seed: int = 1) -> Floats:
    return np.asarray(0.004 * np.random.default_rng(seed).standard_normal(NUM))


@pytest.mark.parametrize("number", [-1.0, 16.0, 1 / 8, -0.5, math.log2(math.e), 0.9])
def test_a_factor(number: float) -> None:
    loss = falling()
    found = factor(number * (loss + small()), loss)
    assert found is not None
    assert found.factor == pytest.approx(number, rel=0.01)
    assert found.residual < 0.01


@pytest.mark.parametrize(
    "target",
    [
        lambda loss: loss + 0.1,
        lambda loss: loss + 1.0,
        lambda loss: loss**1.05,
        lambda loss: np.where(STEPS < 1000, loss, 2 * loss),
        lambda loss: 2 - loss,
        lambda loss: np.full(NUM, np.nan),
    ],
    ids=["offset", "large offset", "power", "from a step on", "another origin", "nothing"],
)
def test_no_factor(target: object) -> None:
    loss = falling()
    assert factor(target(loss) + small(), loss) is None  # type: ignore[operator]


def test_a_level_tells_no_factor() -> None:
    flat = 3.0 + small(2)
    assert factor(1.02 * flat + small(), flat) is None
    assert factor(2 * falling()[:12], falling()[:12]) is None


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (-1.0, "The target's loss is the reference's with the opposite sign at every step"),
        (8.0, "The target's loss is 8 times the reference's at every step"),
        (-2.5, "The target's loss is −2.5 times the reference's at every step"),
    ],
)
def test_a_factor_is_the_headline(number: float, sentence: str) -> None:
    found = judge(seen(criteria=(failing("first_loss"),), factor=Factor(factor=number, residual=0.0)))
    assert text(found.headline) == sentence
    assert {Curves.FACTOR, Curves.CHECK_REDUCTION} <= codes_of(said_by(found))
    near = judge(seen(factor=Factor(factor=1.0, residual=0.0), centre=CENTRED))
    assert Curves.FACTOR not in codes_of(said_by(near))


def test_a_spike_of_the_reference() -> None:
    loss = falling()
    spiking = loss.copy()
    spiking[1500:1503] += [2.5, 1.4, 0.6]
    found, inside = spikes_of_reference(loss + small() - spiking, spiking, STEPS)
    assert found is not None
    assert (found.largest.first_step, found.largest.last_step) == (1500, 1502)
    assert found.largest.height == pytest.approx(2.5, abs=0.05)
    assert inside.sum() == 3
    assert Curves.SPIKE_REFERENCE in codes_of(said_by(judge(seen(reference_excursions=found))))
    assert Curves.SPIKE_REFERENCE not in codes_of(said_by(judge(seen())))


def test_a_target_that_is_low_for_a_while_is_no_spike_of_the_reference() -> None:
    loss = falling()
    low = loss + small()
    low[1500:1503] -= 1.5
    found, inside = spikes_of_reference(low - loss, loss, STEPS)
    assert found is None
    assert not inside.any()
    assert excursions(loss - low, loss, STEPS, 1)[0] is not None


def decorrelating(seed: int) -> Floats:
    """Noise from rounding to the data's, as of two devices."""
    size = np.minimum(1e-4 * np.exp(STEPS / 150), 0.02)
    return np.asarray(size * np.random.default_rng(seed).standard_normal(NUM))


@pytest.mark.parametrize("seed", range(3))
def test_where_runs_part_whose_noise_has_grown(seed: int) -> None:
    noise = decorrelating(seed)
    for departure, within in (
        (np.minimum(0.02 * np.expm1(np.clip(STEPS - 2000, 0, None) / 40), 6.0), NUM // 100),
        (0.08 * (STEPS >= 1500), 6),
    ):
        found = onset(noise + departure, STEPS)
        assert found is not None
        true = 2000 if departure.max() > 1 else 1500
        assert abs(found.step - true) <= within
        assert found.earliest - within <= true <= found.latest + within


def test_steps_of_small_noise() -> None:
    assert 500 <= quiet_until(decorrelating(0), 1500) <= 900
    assert quiet_until(decorrelating(0), 800) == 0  # too near
    assert quiet_until(small(), 1500) == 0
    assert quiet_until(small()[::-1].cumsum(), 1500) == 0
    assert quiet_until(small()[:20], 10) == 0


def test_noise_that_rises_where_the_difference_begins() -> None:
    noise = np.where(STEPS < 400, 5e-4, 0.03) * np.random.default_rng(0).standard_normal(NUM)
    found = onset(noise + 0.1 * np.clip((STEPS - 400) / 1100, 0, 1), STEPS)
    assert found is not None
    assert abs(found.step - 400) <= 60


def test_a_simulated_pair_has_no_factor() -> None:
    target, references = simulate(Truth(num_steps=600), 4)
    losses = [np.asarray(one.frame["loss"]) for one in (target, references[0])]
    assert factor(*losses) is None
