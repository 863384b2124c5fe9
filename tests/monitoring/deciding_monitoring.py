"""Cases whose measured quantity is a number at will, for every entry of ``monitoring/thresholds.py``."""

from __future__ import annotations

from collections.abc import Sequence

from tests.deciding import decides
from tests.monitoring.test_rules import raised, reading
from trueup.monitoring.rules import Spike
from trueup.monitoring.settings import RuleSettings


def spikes(losses: Sequence[float]) -> list[int]:
    """Steps at which a spike of the loss is raised."""
    return list(raised([reading(at, loss=loss) for at, loss in enumerate(losses)], "spike"))


@decides("monitoring.least_deviation")
def least_deviation(share: float) -> object:
    return spikes([1.0] * 20 + [1 + 6 * share])


@decides("monitoring.enough")
def enough(steps: float) -> object:
    return len(spikes([1.0] * int(steps) + [2.0]))


@decides("monitoring.spike_again")
def spike_again(steps: float) -> object:
    return len(spikes([1.0] * 20 + [2.0] + [1.0] * int(steps) + [2.0]))


@decides("monitoring.new_level", beside=(0, 1))
def new_level(steps: float) -> object:
    """After so many steps on another level: whether one more is still a spike."""
    rule = Spike(RuleSettings())
    for at, loss in enumerate([1.0] * 20 + [2.0] * int(steps)):
        rule.found(reading(at, loss=loss))
    return len(rule.found(reading(99, loss=2.0)))


@decides("monitoring.learning_steps")
def learning_steps(steps: float) -> object:
    run = [reading(at, loss=1.0) for at in range(2 * int(steps))]
    return len(raised(run, "no_learning", RuleSettings(no_learning_steps=1)))
