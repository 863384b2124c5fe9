"""What the arrays of a step tell: where Adam adds eps, and the rate under the momentum of Nesterov."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trueup.diagnosing.update_rule import OptimizerStep, StepFit, fit_step

pytestmark = pytest.mark.torch

LR, EPS, BETAS = 1e-3, 1e-8, (0.9, 0.95)


def adam(*, inside: bool, smallest: float) -> StepFit:
    """One step of Adam on 400 weights whose gradients are of sizes from ``smallest`` to 0.1."""
    generator = np.random.default_rng(0)
    before = 0.05 * generator.standard_normal(400)
    gradient = np.geomspace(smallest, 0.1, 400) * generator.choice([-1.0, 1.0], 400)
    root = np.sqrt(gradient**2 + EPS) if inside else np.abs(gradient) + EPS
    moved = -LR * gradient / root - LR * 0.1 * before
    return fit_step(
        OptimizerStep(
            before=before,
            moved=moved,
            gradient=gradient,
            first=(1 - BETAS[0]) * gradient,
            second=(1 - BETAS[1]) * gradient**2,
            count=1.0,
            dtype="float32",
            moment_dtype="float32",
            settings={"class": "AdamW", "lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": 0.1},
        )
    )


@pytest.mark.parametrize("inside", [True, False])
def test_where_eps_is_added_is_told_by_small_gradients(inside: bool) -> None:
    fit = adam(inside=inside, smallest=1e-6)
    assert fit.eps_inside is inside
    assert fit.constants["lr"].value == pytest.approx(LR, rel=1e-4)
    assert fit.constants["weight_decay"].value == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize("inside", [True, False])
def test_where_eps_does_not_matter_its_place_is_not_told(inside: bool) -> None:
    assert adam(inside=inside, smallest=0.09).eps_inside is None


@pytest.mark.parametrize("momentum", [0.8, 0.9])
def test_nesterovs_momentum_is_no_learning_rate(momentum: float) -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(200, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.05, momentum=momentum, nesterov=True, weight_decay=5e-4)
    for _ in range(3):
        before, gradient = weight.detach().clone(), torch.randn(200, dtype=torch.float64)
        weight.grad = gradient
        optimizer.step()
    fit = fit_step(
        OptimizerStep(
            before=before.numpy(),
            moved=(weight.detach() - before).numpy(),
            gradient=gradient.numpy(),
            buffer=optimizer.state[weight]["momentum_buffer"].numpy(),
            settings={"class": "SGD", "momentum": momentum, "nesterov": True, "weight_decay": 5e-4},
        )
    )
    assert fit.constants["lr"].value == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize("size", [2, 3, 64, 2048])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_decay_in_the_moments_is_told_in_any_dtype(kind: type, dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(size)
    weight = torch.nn.Parameter((0.2 * torch.randn(size)).to(dtype))
    optimizer = kind([weight], lr=4e-3, betas=(0.9, 0.98), weight_decay=0.2)
    name, states = str(dtype).removeprefix("torch."), {}
    for count in (1.0, 2.0):
        before, gradient = weight.detach().clone(), (0.01 * torch.randn(size)).to(dtype)
        weight.grad = gradient.clone()
        optimizer.step()
        now = {key: optimizer.state[weight][key].double().numpy().copy() for key in ("exp_avg", "exp_avg_sq")}
        fit = fit_step(
            OptimizerStep(
                before=before.double().numpy(),
                moved=(weight.detach().double() - before.double()).numpy(),
                gradient=gradient.double().numpy(),
                first=now["exp_avg"],
                second=now["exp_avg_sq"],
                first_before=states.get("exp_avg"),
                second_before=states.get("exp_avg_sq"),
                count=count,
                dtype=name,
                moment_dtype=name,
                settings={"class": kind.__name__, "lr": 4e-3, "betas": (0.9, 0.98), "weight_decay": 0.2},
            )
        )
        states = now
        assert fit.bias_corrected in (True, None)
        if kind is torch.optim.AdamW:
            assert not fit.coupled
        elif size >= 64:
            assert fit.coupled
            assert fit.constants["weight_decay"].value == pytest.approx(0.2, rel=0.02)
