"""Weights that a program's own optimizer moves: what other bits of the gradients make of the moves is no
finding, what another rule makes of the same gradients is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.diagnosing.made_steps import Array, context_of, drawn, run, step
from trueup.diagnosing.stages.between_steps import moved_between
from trueup.store.view import ACCUMULATED, WEIGHT
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Finding

WEIGHTS = {"a.w": drawn(1, 30, 20), "b.w": drawn(2, 40)}
GRADIENTS = {
    name: np.float32(1e-3) * drawn(7 + at, *one.shape) for at, (name, one) in enumerate(WEIGHTS.items())
}


def adam(
    weight: Array, gradient: Array, *, rate: float = 2e-3, eps: float = 1e-8, decay: float = 0.1
) -> Array:
    """After one step from a new state."""
    gradient = gradient.astype(np.float64)
    return (weight * (1 - rate * decay) - rate * gradient / (np.abs(gradient) + eps)).astype(np.float32)


def descent(weight: Array, gradient: Array, *, rate: float = 0.3) -> Array:
    return (weight - rate * gradient.astype(np.float64)).astype(np.float32)


def noisy(size: float, seed: int = 30) -> dict[str, Array]:
    """Gradients with noise of this part of the largest: as another kernel rounds, small ones by more."""
    return {
        name: (one + size * np.abs(one).max() * drawn(seed + at, *one.shape)).astype(np.float32)
        for at, (name, one) in enumerate(GRADIENTS.items())
    }


def found(
    folder: Path, rules: tuple[object, object], gradients: tuple[dict[str, Array], dict[str, Array]]
) -> int:
    return len(findings(folder, rules, gradients))


def findings(
    folder: Path, rules: tuple[object, object], gradients: tuple[dict[str, Array], dict[str, Array]]
) -> list[Finding]:
    """Of two runs of one step each, by their update and their gradients."""
    sides = []
    for at, (rule, made) in enumerate(zip(rules, gradients, strict=True)):
        before = {name: {WEIGHT: one, ACCUMULATED: made[name]} for name, one in WEIGHTS.items()}
        after = {name: {WEIGHT: rule(one, made[name])} for name, one in WEIGHTS.items()}  # type: ignore[operator]
        sides.append(run(folder / str(at), step(before), step(after)))
    return moved_between(context_of(*sides))


@pytest.mark.parametrize("rule", [adam, descent])
@pytest.mark.parametrize("size", [1e-7, 1e-4, 3e-2])
def test_other_bits_of_gradients_are_no_finding(tmp_path: Path, rule: object, size: float) -> None:
    assert not found(tmp_path, (rule, rule), (noisy(size), GRADIENTS))


@pytest.mark.parametrize("size", [0.0, 1e-7, 1e-5])
def test_another_rule_of_nearly_the_same_gradients_is_one(tmp_path: Path, size: float) -> None:
    changed = (
        lambda weight, gradient: adam(weight, gradient, rate=2.1e-3),
        lambda weight, gradient: adam(weight, gradient, eps=1e-5),
        lambda weight, gradient: adam(weight, gradient, decay=0.0),
        descent,
    )
    for at, rule in enumerate(changed):
        assert found(tmp_path / str(at), (rule, adam), (noisy(size) if size else GRADIENTS, GRADIENTS)) == 1


def test_a_gradient_that_one_run_has_otherwise_is_told_of_the_gradient(tmp_path: Path) -> None:
    """Of gradients all other, nothing is told of the moves."""
    assert not found(tmp_path, (adam, adam), (noisy(1.0), GRADIENTS))


def test_equal_gradients_of_one_weight_hold_its_move(tmp_path: Path) -> None:
    """Noise in one weight's gradient hides no other rule for the other."""
    made = {**GRADIENTS, "b.w": noisy(1e-6)["b.w"]}

    def twice(weight: Array, gradient: Array) -> Array:
        return adam(weight, gradient, rate=4e-3 if weight.ndim == 2 else 2e-3)

    assert found(tmp_path, (twice, adam), (made, GRADIENTS)) == 1


def uncounted(weight: Array, gradient: Array) -> Array:
    """A bias correction before the step is counted: 0 over 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        moment = 0.1 * gradient.astype(np.float64) / np.float64(0.0)
        return np.asarray(weight - 2e-3 * moment / (np.abs(moment) + 1e-8), np.float32)


@pytest.mark.parametrize("side", ["target", "reference"])
def test_an_update_that_makes_nan_has_no_length(side: str, tmp_path: Path) -> None:
    rules = (uncounted, adam) if side == "target" else (adam, uncounted)
    (one,) = findings(tmp_path, rules, (GRADIENTS, GRADIENTS))
    assert (one.headline.code, one.headline.place("side")) == (Stages.MOVED_TO_NAN, side)
    assert [part.code for part in (*one.evidence, *one.causes)] == [
        Stages.FINITE_GRADIENTS,
        Stages.DIVIDED_BY_ZERO,
    ]


def test_gradients_that_are_nan_make_the_update_so(tmp_path: Path) -> None:
    """Twin: the update itself divides by nothing."""
    broken = {name: one * np.float32(np.nan) for name, one in GRADIENTS.items()}
    (one,) = findings(tmp_path, (adam, adam), (broken, GRADIENTS))
    assert one.headline.code is Stages.MOVED_TO_NAN
    assert (one.evidence, one.causes) == ((), ())
