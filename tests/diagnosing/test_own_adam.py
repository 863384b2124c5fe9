"""An Adam that programs write themselves, told from weights and gradients of its first step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trueup.diagnosing.own_adam import own_adam
from trueup.diagnosing.stages.own_update import OwnMove, own_constants
from trueup.types.codes import StagesCode as Stages

UNIT = 2.0**-24
DRAW = np.random.default_rng(3)
WEIGHTS = {"a": DRAW.normal(size=600) * 0.1, "b": DRAW.normal(size=400)}
GRADIENTS = {"a": DRAW.normal(size=600) * 1e-3, "b": DRAW.normal(size=400) * 1e-4}


def moved(
    name: str,
    *,
    rate: float = 2e-3,
    eps: float = 1e-5,
    decay: float = 0.1,
    coarse: bool = False,
    power: int = 1,
) -> OwnMove:
    """One weight in float32 after Adam's first step, or (``power`` 0) after a step along signs alone."""
    before = WEIGHTS[name].astype(np.float32).astype(np.float64)
    gradient = GRADIENTS[name].astype(np.float32).astype(np.float64)
    update = (
        gradient / (np.abs(gradient) + eps) if power == 1 else np.abs(gradient) ** 0.5 * np.sign(gradient)
    )
    if coarse:
        bits = update.astype(np.float32).view(np.uint32)
        update = ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    after = (before * (1 - rate * decay) - rate * update).astype(np.float32).astype(np.float64)
    rounding = float(4 * UNIT * np.sqrt(np.mean(after**2)))
    return OwnMove(after - before, gradient, before, rounding)


def both(**changes: Any) -> Any:
    return own_constants(
        {name: moved(name, **changes) for name in WEIGHTS}, {name: moved(name) for name in WEIGHTS}
    )


def test_the_constants_are_found() -> None:
    found = own_adam(*moved("b"))
    assert found is not None
    assert found.rate.value == pytest.approx(2e-3, rel=1e-3)
    assert found.eps.value == pytest.approx(1e-5, rel=1e-2)
    assert found.pull.value / found.rate.value == pytest.approx(0.1, rel=1e-2)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"rate": 2.2e-3}, Stages.OWN_RATE),
        ({"decay": 0.0}, Stages.OWN_DECAY),
        ({"eps": 3e-5}, Stages.OWN_EPS),
        ({"eps": 1e-5 / (1 - 0.95) ** 0.5}, Stages.OWN_EPS),
        ({"coarse": True}, Stages.OWN_STATE_ROUNDED),
    ],
)
def test_the_constant_that_differs_is_told(changes: dict[str, Any], code: Stages) -> None:
    found = both(**changes)
    assert found is not None
    assert found.headline.code is code
    (seen,) = found.evidence
    assert (seen.code, seen.number("num"), seen.number("total")) == (Stages.OWN_ADAM, 2, 2)
    coarse = [one.place("dtype") for one in found.causes if one.code is Stages.OWN_STATE_COARSE]
    assert coarse == (["bfloat16"] if "coarse" in changes else [])


def test_a_coarse_state_of_either_run() -> None:
    coarse = {name: moved(name, coarse=True) for name in WEIGHTS}
    found = own_constants({name: moved(name) for name in WEIGHTS}, coarse)
    assert found is not None
    assert (found.headline.code, found.headline.place("side")) == (Stages.OWN_STATE_ROUNDED, "reference")
    assert own_constants(coarse, coarse) is None


def test_moves_that_are_rounded_and_longer_are_no_coarse_state() -> None:
    assert both(coarse=True, rate=2e-3 * (1 + 2**-7)) is None


def test_an_eps_before_the_correction_is_told_of_usual_betas_alone() -> None:
    codes = [
        {one.code for one in both(eps=eps).causes}
        for eps in (1e-5 / (1 - 0.95) ** 0.5, 4.4e-5, 1e-5 * (1 - 0.95) ** 0.5)
    ]
    assert [Stages.EPS_BEFORE_CORRECTION in one for one in codes] == [True, False, True]
    assert [Stages.OTHER_EPS in one for one in codes] == [False, True, False]
    assert Stages.SCALED_TO_OPTIMIZER in codes[1]


def test_equal_constants_and_other_rules_are_told_nothing_of() -> None:
    assert both() is None
    assert both(rate=2e-3 * (1 + 1e-5)) is None
    other = {name: moved(name, power=0) for name in WEIGHTS}
    assert own_constants(other, other) is None
    assert own_constants({name: moved(name) for name in WEIGHTS}, other) is None


def test_other_gradients_are_no_case() -> None:
    target = {name: moved(name, eps=3e-5) for name in WEIGHTS}
    changed = {name: one._replace(gradient=one.gradient * 1.01) for name, one in target.items()}
    assert own_constants(changed, {name: moved(name) for name in WEIGHTS}) is None
