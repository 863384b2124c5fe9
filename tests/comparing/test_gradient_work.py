"""What a program does with gradients outside the model is told from what it does with outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.adapters.torch.reading import capture
from trueup.comparing.run import compare
from trueup.types.codes import VerdictCode
from trueup.types.verdict import Verdict

pytestmark = pytest.mark.torch


def _clipped_by_hand(weights: list[Tensor], outputs: Tensor, target: Tensor, factor: float) -> None:
    with torch.no_grad():
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = torch.stack([one.norm() for one in gradients]).norm()
        scale = torch.div(factor, norm + 1e-6)
        for one in gradients:
            one.mul_(scale)


def _scaled_flat(weights: list[Tensor], outputs: Tensor, target: Tensor, factor: float) -> None:
    with torch.no_grad():
        flat = torch.cat([weight.grad.flatten() for weight in weights if weight.grad is not None])
        flat = torch.mul(flat, factor)
        for weight, piece in zip(weights, flat.split([w.numel() for w in weights]), strict=True):
            weight.grad = piece.view_as(weight).clone()


def _metric(weights: list[Tensor], outputs: Tensor, target: Tensor, factor: float) -> None:
    with torch.no_grad():
        torch.mul((outputs - target).abs().mean(), factor)


def _verdict(folder: Path, after: object) -> Verdict:
    def program(factor: float) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        x, y = torch.randn(16, 4), 5 * torch.randn(16, 1)
        for _ in range(2):
            optimizer.zero_grad()
            outputs = model(x)
            (outputs - y).square().mean().backward()
            after(list(model.parameters()), outputs, y, factor)  # type: ignore[operator]
            optimizer.step()

    for factor in (0.5, 0.7):
        capture(folder / str(factor), lambda f=factor: program(f), level="mix")
    return compare(folder / "0.7", folder / "0.5").verdict


@pytest.mark.parametrize("after", [_clipped_by_hand, _scaled_flat])
def test_work_on_gradients_is_shown_as_such(after: object, tmp_path: Path) -> None:
    verdict = _verdict(tmp_path, after)
    assert verdict.phase == "param_grad"
    assert verdict.headline.code is VerdictCode.ARGUMENT_DIFFERS
    assert verdict.headline.place("module") is None


def test_a_metric_after_backward_is_no_work_on_gradients(tmp_path: Path) -> None:
    verdict = _verdict(tmp_path, _metric)
    assert verdict.phase == "forward"
