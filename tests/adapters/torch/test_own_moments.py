"""Steps of an update that a program writes itself, where its first one changes nothing (a warm-up from 0)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.adapters.torch.reading import capture

pytestmark = pytest.mark.torch


def trained(rates: tuple[float, ...], microbatches: int, *, adam: bool = True) -> None:
    """Adam, or gradients that are added up in buffers and a plain update, over ``weight.data``."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 5)
    weights = list(model.parameters())
    first, second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    for rate in rates:
        for _ in range(microbatches):
            model(torch.randn(4, 6)).square().mean().backward()
            for weight, m, v in zip(weights, first, second, strict=True):
                assert weight.grad is not None
                gradient, weight.grad = weight.grad, None
                m.lerp_(gradient, 0.1) if adam else m.add_(gradient)
                if adam:
                    v.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
        for weight, m, v in zip(weights, first, second, strict=True):
            weight.data -= rate * (m / (v.sqrt() + 1e-8) if adam else m)
            if not adam:
                m.zero_()


@pytest.mark.parametrize(
    ("rates", "microbatches", "adam", "num_steps"),
    [((0.0, 0.1, 0.1), 1, True, 3), ((0.1, 0.1, 0.1), 2, False, 3)],
    ids=["a moment is no sum", "a sum of microbatches"],
)
def test_what_holds_a_gradient(
    rates: tuple[float, ...], microbatches: int, adam: bool, num_steps: int, tmp_path: Path
) -> None:
    captured = capture(tmp_path, lambda: trained(rates, microbatches, adam=adam), level="L0")
    assert len(captured.trace.steps()) == num_steps
