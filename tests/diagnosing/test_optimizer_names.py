"""Optimizers of other names: one rule written twice, or two rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import StagesCode  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

X = torch.randn(8, 10, generator=torch.Generator().manual_seed(1))


class ByHand(torch.optim.Optimizer):
    """AdamW in a few lines, its step counted once for all."""

    corrected = True

    def __init__(self, weights: Any, **options: Any) -> None:
        super().__init__(weights, options)
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        for group in self.param_groups:
            beta, gamma = group["betas"]
            for weight in group["params"]:
                state = self.state[weight]
                for name in ("exp_avg", "exp_avg_sq"):
                    state.setdefault(name, torch.zeros_like(weight))
                state["exp_avg"].mul_(beta).add_(weight.grad, alpha=1 - beta)
                state["exp_avg_sq"].mul_(gamma).addcmul_(weight.grad, weight.grad, value=1 - gamma)
                first, second = (1 - beta**self.count, 1 - gamma**self.count) if self.corrected else (1, 1)
                update = (state["exp_avg"] / first) / ((state["exp_avg_sq"] / second).sqrt() + group["eps"])
                weight.sub_(group["lr"] * (update + group["weight_decay"] * weight))


class Uncorrected(ByHand):
    """The same without bias correction."""

    corrected = False


class LaterOther(ByHand):
    """AdamW in its first step, another rule from the second on."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.count:
            for group in self.param_groups:
                group["betas"] = (0.5, 0.95)
        super().step()
        for group in self.param_groups:
            group["betas"] = (0.9, 0.95)


OPTIONS: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def trained(folder: Path, optimizer: Any = torch.optim.AdamW, *, steps: str = "0-1") -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 4))
    chosen = optimizer(model.parameters(), **OPTIONS)
    with trueup.Tracer(folder, level="L0", steps=steps, task="tensor"):
        for _ in range(2):
            model(X).square().mean().backward()
            chosen.step()
            chosen.zero_grad()
    return folder


def test_one_rule_under_two_names_agrees(tmp_path: Path) -> None:
    run, reference = trained(tmp_path / "run", ByHand), trained(tmp_path / "reference")
    assert compare(run, reference).verdict.outcome is Outcome.AGREE
    diagnosis = diagnose(run, reference, output=tmp_path / "out")
    assert diagnosis.outcome is Outcome.AGREE
    said = [one.code for stage in diagnosis.stages for one in stage.evidence]
    assert StagesCode.ALIKE_OPTIMIZERS in said


@pytest.mark.parametrize("optimizer", [Uncorrected, LaterOther])
def test_another_rule_differs(optimizer: type[ByHand], tmp_path: Path) -> None:
    run, reference = trained(tmp_path / "run", optimizer), trained(tmp_path / "reference")
    assert diagnose(run, reference, output=tmp_path / "out").exit_code == 1


def test_one_step_does_not_tell(tmp_path: Path) -> None:
    """In the first step many rules are one."""
    run = trained(tmp_path / "run", ByHand, steps="0")
    diagnosis = diagnose(run, trained(tmp_path / "reference", steps="0"), output=tmp_path / "out")
    assert diagnosis.outcome is not Outcome.AGREE
