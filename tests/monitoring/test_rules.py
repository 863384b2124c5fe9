"""The rules on readings made by hand: each with a case that raises it and one that must not."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from trueup.cli.app import USAGE
from trueup.monitoring.alarms import Latch, Subject
from trueup.monitoring.events import alarm_from_subjects
from trueup.monitoring.readings import Reading
from trueup.monitoring.rules import rules_from_settings
from trueup.monitoring.settings import RULES, RuleSettings
from trueup.store.series import StepBlock
from trueup.types.codes import MonitorCode
from trueup.wording import text


def reading(
    step: int,
    *,
    skipped: bool = False,
    updates: bool = True,
    blocks: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
    **numbers: float,
) -> Reading:
    """One step; ``blocks``: kind -> column -> name -> number."""
    made = {}
    for kind, columns in (blocks or {}).items():
        names = tuple(next(iter(columns.values())))
        made[kind] = StepBlock(
            names, {c: np.asarray([v[n] for n in names], float) for c, v in columns.items()}
        )
    return Reading(step=step, numbers=numbers, skipped=skipped, updates=updates, blocks=made)


def raised(
    readings: Sequence[Reading], rule: str, settings: RuleSettings | None = None
) -> dict[int, list[str]]:
    """Step -> subjects a rule raises."""
    (judge,) = [one for one in rules_from_settings(settings or RuleSettings()) if one.name == rule]
    return {r.step: [s.name for s in found] for r in readings if (found := judge.judge(r))}


def noisy_losses(num: int, *, seed: int = 0) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, 0.02, num)
    return (2 + 4 * np.exp(-np.arange(num) / 200) + noise).tolist()


def test_a_latch_holds_and_lets_go() -> None:
    latch = Latch(raise_after=2, clear_after=2)
    seen = [bool(latch.update(["x"] if c == "1" else [])) for c in "0110110011"]
    assert seen == [False, False, True, False, False, False, False, False, False, True]


def test_nan_is_raised_once_and_by_name() -> None:
    nan = {"gradient": {"num_nan": {"a": 0.0, "b": 3.0}}}
    run = [reading(0, loss=1.0), reading(1, loss=math.nan, blocks=nan), reading(2, loss=math.nan, blocks=nan)]
    assert raised(run, "nan") == {1: ["loss", "gradient of b"]}


def test_gradients_of_a_step_a_scaler_left_out_are_no_alarm_until_there_are_too_many() -> None:
    inf = {"gradient": {"num_inf": {"a": 5.0}, "num_nan": {"a": 1.0}}}
    few = [reading(i, loss=1.0, grad_norm=math.inf, skipped=True, blocks=inf) for i in range(3)]
    few += [reading(i, loss=1.0, grad_norm=1.0) for i in range(3, 9)]
    assert raised(few, "overflow") == {}
    assert raised(few, "nan") == {}
    many = [reading(i, loss=1.0, skipped=True, blocks=inf) for i in range(9)]
    assert raised(many, "overflow") == {3: ["updates left out in a row:"]}
    assert raised([reading(0, loss=1.0, blocks=inf)], "overflow") == {0: ["gradient of a"]}


def test_a_spike_is_raised_and_noise_is_not() -> None:
    losses = noisy_losses(600)
    assert raised([reading(i, loss=v) for i, v in enumerate(losses)], "spike") == {}
    losses[400] += 3
    losses[401] += 3
    losses[500] += 3
    assert raised([reading(i, loss=v) for i, v in enumerate(losses)], "spike") == {
        400: ["loss"],
        500: ["loss"],
    }


def test_a_new_level_is_not_a_spike_for_ever() -> None:
    losses = [2.0 + 0.01 * (i % 3) + (3 if i >= 100 else 0) + (2 if i == 200 else 0) for i in range(300)]
    assert raised([reading(i, loss=v) for i, v in enumerate(losses)], "spike") == {
        100: ["loss"],
        200: ["loss"],
    }


def test_a_weight_many_times_its_largest_gradient_is_a_spike() -> None:
    def at(step: int, norm: float) -> Reading:
        return reading(step, blocks={"gradient": {"l2_norm": {"a": 1.0, "b": norm}}})

    run = [at(i, 1.0) for i in range(20)] + [at(20, 9.0), at(21, 120.0)]
    assert raised(run, "spike") == {21: ["gradient of b"]}


@pytest.mark.parametrize(("rule", "factor", "after"), [("vanishing", 1e-4, 8), ("exploding", 1e3, 3)])
def test_a_gradient_that_stays_away_from_where_it_began(rule: str, factor: float, after: int) -> None:
    def at(step: int, norm: float) -> Reading:
        return reading(step, blocks={"gradient": {"l2_norm": {"a": 1.0, "b": norm}}})

    begin = [at(i, 1.0 + 0.1 * (i % 5)) for i in range(40)]
    lasting = [at(40 + i, factor) for i in range(20)]
    assert raised([*begin, *lasting], rule) == {40 + after - 1: ["gradient of b"]}
    flicker = [at(40 + i, factor if i % 2 else 1.0) for i in range(20)]
    assert raised([*begin, *flicker], rule) == {}


def test_frozen_needs_an_update_that_should_have_moved_it() -> None:
    still = {"update": {"zero_share": {"a": 1.0, "b": 0.5}}}
    assert raised([reading(i, blocks=still) for i in range(10)], "frozen") == {7: ["update of a"]}
    assert raised([reading(i, blocks=still, updates=False) for i in range(10)], "frozen") == {}
    assert raised([reading(i, blocks=still, skipped=True) for i in range(10)], "frozen") == {}


def test_frozen_finds_a_weight_without_gradient() -> None:
    blocks = {"weight": {"l2_norm": {"a": 1.0, "b": 1.0}}, "gradient": {"l2_norm": {"a": 1.0}}}
    assert raised([reading(i, blocks=blocks) for i in range(10)], "frozen") == {7: ["no gradient of b"]}


def test_all_zero_lasts_before_it_is_raised() -> None:
    zero = {"gradient": {"zero_share": {"a": 1.0}}, "activation": {"zero_share": {"m": 0.99}}}
    assert raised([reading(i, blocks=zero) for i in range(8)], "all_zero") == {3: ["gradient of a"]}
    assert raised([reading(i, blocks=zero) for i in range(3)], "all_zero") == {}


def test_no_learning_is_told_from_learning_and_from_a_rate_of_zero() -> None:
    flat = [2.0 + 0.01 * (i % 7) for i in range(600)]
    assert raised([reading(i, loss=v) for i, v in enumerate(flat)], "no_learning") == {511: ["loss"]}
    assert raised([reading(i, loss=v, updates=False) for i, v in enumerate(flat)], "no_learning") == {}
    assert raised([reading(i, loss=v) for i, v in enumerate(noisy_losses(600))], "no_learning") == {}


def test_rules_can_be_left_out() -> None:
    assert not rules_from_settings(RuleSettings(disabled=RULES))


def test_long_noisy_curves_give_few_false_spikes() -> None:
    """Six sigmas of normal noise: none in 20,000 steps."""
    false = 0
    for seed in range(10):
        run = [reading(i, loss=v) for i, v in enumerate(noisy_losses(2000, seed=seed))]
        false += len(raised(run, "spike"))
    assert false == 0


def test_the_advice_of_an_alarm_is_that_of_its_rule() -> None:
    """Each rule has its own, whose commands there are; of a rule from elsewhere it points to the monitor."""
    said = {}
    for rule in (*RULES, "from elsewhere"):
        alarm = alarm_from_subjects(rule, [Subject(name="loss", value=2.0, threshold=1.0)], step=3, rank=1)
        assert alarm.advice.code is MonitorCode.ADVICE
        assert alarm.advice.place("rule") == rule
        said[rule] = text(alarm.advice)
        assert set(re.findall(r"trueup ([a-z][a-z-]+)", said[rule])) <= USAGE.keys()
    assert len(set(said.values())) >= len(RULES)  # NaN and overflow are found in the same way
    assert "trueup monitor" in said["from elsewhere"]
