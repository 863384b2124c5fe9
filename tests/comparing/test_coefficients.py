"""Averages of two implementations of one optimizer: 1 - beta rounded in one of them is no difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import trueup
from trueup.comparing.run import compare

pytestmark = pytest.mark.torch


class AdamW(torch.optim.Optimizer):
    """Written out; ``share`` of what is new goes into the second average."""

    def __init__(self, parameters: object, share: float, fused: bool) -> None:
        super().__init__(parameters, {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "fused": fused})  # type: ignore[arg-type]
        self.share = share

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state |= {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
            first, second = state["exp_avg"], state["exp_avg_sq"]
            first.mul_(0.9).add_(parameter.grad, alpha=0.1)
            second.mul_(0.999).add_(parameter.grad.square(), alpha=self.share)
            parameter.sub_(1e-3 * (first / 0.1) / ((second / 0.001).sqrt() + 1e-8))


def trained(folder: Path, share: float, *, fused: bool) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = AdamW(model.parameters(), share, fused)
    with trueup.Tracer(folder, level="mix", sketch=True, steps="all"):
        for _ in range(2):
            model(torch.randn(32, 24)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


DOUBLE, SINGLE = 0.001, float(np.float32(1) - np.float32(0.999))
"""1 - 0.999; the second is less by a share of 1.3e-5"""


@pytest.mark.parametrize(
    ("share", "fused", "status"),
    [
        (SINGLE, True, 0),
        (SINGLE, False, 1),  # the same implementation makes the same numbers
        (DOUBLE * (1 - 2e-4), True, 1),  # more than rounding one number
        (DOUBLE, True, 0),
    ],
)
def test_a_share_that_one_implementation_rounds(
    tmp_path: Path, share: float, fused: bool, status: int
) -> None:
    reference = trained(tmp_path / "reference", DOUBLE, fused=False)
    target = trained(tmp_path / "target", share, fused=fused)
    assert int(compare(target, reference, output=tmp_path / "out").exit_code) == status
