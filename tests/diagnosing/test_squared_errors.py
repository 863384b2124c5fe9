"""Losses of squares that a program writes itself: targets from what the loss sends back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.diagnosing.cases import case
from trueup.diagnosing.evidence.facts import RunFacts
from trueup.diagnosing.squared_errors import SquaredErrors, squared_errors, squares_of

Loss = Callable[[Tensor, Tensor], Tensor]
PREDICTED = torch.randn(12, 3, 5, generator=torch.Generator().manual_seed(1))
WANTED = torch.randn(12, 3, 5, generator=torch.Generator().manual_seed(2))
SQUARED: dict[str, Loss] = {
    "mean": lambda p, y: ((y - p) ** 2).mean(),
    "sum": lambda p, y: (p - y).square().sum(),
    "half": lambda p, y: 0.5 * (p - y).pow(2).mean(),
    "samples": lambda p, y: (p - y).pow(2).flatten(1).sum(1).mean(),
    "library": F.mse_loss,
}
OTHERS: dict[str, Loss] = {
    "absolute": lambda p, y: (p - y).abs().mean(),
    "huber": lambda p, y: F.huber_loss(p, y, delta=0.7),
    "weighted": lambda p, y: ((p - y) ** 2 * torch.linspace(0.5, 1.5, 5)).mean(),
    "fourth": lambda p, y: (p - y).pow(4).mean(),
    "with another term": lambda p, y: ((p - y) ** 2).mean() + 1e-3 * p.square().mean(),
    "scaled": lambda p, y: 0.9 * ((p - y) ** 2).mean(),
}


def sent(loss: Loss, predicted: Tensor, wanted: Tensor) -> tuple[Tensor, float]:
    """The real gradient by the prediction, and the loss."""
    given = predicted.clone().requires_grad_()
    value = loss(given, wanted)
    value.backward()
    assert given.grad is not None
    return given.grad, float(value.detach())


def fitted(loss: Loss, wanted: Tensor = WANTED, predicted: Tensor = PREDICTED) -> SquaredErrors | None:
    back, value = sent(loss, predicted, wanted)
    return squared_errors(predicted.double().numpy(), back.double().numpy(), value, 2.0**-24)


@pytest.mark.parametrize("name", SQUARED)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_the_targets_of_squares(name: str, scale: float) -> None:
    one = fitted(SQUARED[name], scale * WANTED)
    assert one is not None
    wanted = (scale * WANTED).double().numpy()
    assert np.abs(one.targets - wanted).max() <= 4 * one.rounding * np.abs(wanted).max()


@pytest.mark.parametrize("name", SQUARED)
def test_the_targets_of_squares_in_bfloat16(name: str) -> None:
    """Predictions in bfloat16, whose gradients are; the loss in float32."""
    predicted = PREDICTED.bfloat16().float()
    back, value = sent(SQUARED[name], predicted, WANTED)
    one = squared_errors(predicted.double().numpy(), back.bfloat16().double().numpy(), value, 2.0**-9)
    assert one is not None
    assert np.abs(one.targets - WANTED.double().numpy()).max() <= 2.0**-8 * np.abs(one.errors).max()


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "with another term"])
def test_another_form_in_bfloat16_has_none(name: str) -> None:
    """A term of a thousandth is below what bfloat16 shows."""
    predicted = PREDICTED.bfloat16().float()
    back, value = sent(OTHERS[name], predicted, WANTED)
    gradient = back.bfloat16().double().numpy()
    assert squared_errors(predicted.double().numpy(), gradient, value, 2.0**-9) is None


@pytest.mark.parametrize("name", OTHERS)
def test_a_loss_of_another_form_has_none(name: str) -> None:
    assert fitted(OTHERS[name]) is None


def evidence_of(target: tuple[Loss, Tensor], reference: tuple[Loss, Tensor], predicted: Tensor) -> object:
    runs, values = [], []
    for loss, wanted in (target, reference):
        back, value = sent(loss, predicted, wanted)
        sides = {"sent_from": {0: predicted.double().numpy()}, "sent_back": {0: back.double().numpy()}}
        runs.append(RunFacts(**sides, dtypes=frozenset({"float32"})))
        values.append(torch.tensor(value))
    return case(*values, phase="loss", slot="value", module="", target_run=runs[0], reference_run=runs[1])


@pytest.mark.parametrize("broadcast", ["target", "reference", None])
def test_targets_that_are_broadcast(broadcast: str | None) -> None:
    """[16] against [16, 1]: all pairs. Twin: the mean as target of all, without the spread in the loss."""
    predicted, wanted = PREDICTED.flatten()[:16, None], WANTED.flatten()[:16, None]
    plain: tuple[Loss, Tensor] = (SQUARED["mean"], wanted)
    every: tuple[Loss, Tensor] = (SQUARED["mean"], wanted[:, 0])
    twin: tuple[Loss, Tensor] = (SQUARED["mean"], wanted.mean().expand(16, 1))
    sides = {"target": (every, plain), "reference": (plain, every), None: (twin, plain)}[broadcast]
    found = squares_of(evidence_of(*sides, predicted), 0)  # type: ignore[arg-type]
    assert found is not None
    assert found[2] == broadcast


def test_squares_of_another_number_are_not_told_by_targets() -> None:
    """A sum against a mean: the same targets, and a factor that other rules name."""
    sides = (SQUARED["sum"], WANTED), (SQUARED["mean"], WANTED)
    assert squares_of(evidence_of(*sides, PREDICTED), 0) is None  # type: ignore[arg-type]
