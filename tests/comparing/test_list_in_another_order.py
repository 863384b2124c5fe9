"""A norm of all gradients that a program works out itself, where the modules are in another order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import trueup
from trueup.comparing.run import compare
from trueup.types.codes import RecordCode
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch

NAMES = ("first", "second", "third")


class Model(nn.Module):
    """The same layers, made in one order or another, each from a seed of its own."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        for at in order:
            torch.manual_seed(at)
            setattr(self, NAMES[at], nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        for name in NAMES:
            x = torch.tanh(getattr(self, name)(x))
        return x


def train(path: Path, order: tuple[int, ...] = (0, 1, 2), form: str = "usual") -> Path:
    model = Model(order)
    draw = torch.Generator().manual_seed(5)
    with trueup.Tracer(path, level="mix", steps="all"):
        for _ in range(2):
            model.zero_grad()
            model(torch.randn(6, 8, generator=draw)).square().mean().backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            norms = [g.norm() for g in gradients]
            if form == "one counted twice":
                norms[1] = norms[0]
            row = torch.stack(norms)
            if form == "weighed by place":
                row = row * torch.linspace(0.5, 1.5, len(norms))
            norm = row.square().sum().sqrt()
            scale = (0.05 / (norm + 1e-6)).clamp(max=1.0)
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p.sub_(0.1 * scale * p.grad)
    return path


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 0, 2)])
def test_the_same_numbers_in_another_order_are_no_difference(order: tuple[int, ...], tmp_path: Path) -> None:
    found = compare(train(tmp_path / "t", order), train(tmp_path / "r"), output=tmp_path / "out")
    assert found.verdict.outcome is Outcome.AGREE, found.verdict.headline
    codes = set(found.frame()["reason_code"].to_list())
    assert RecordCode.ANOTHER_ORDER.value in codes


@pytest.mark.parametrize("form", ["one counted twice", "weighed by place"])
def test_where_the_order_or_a_number_counts_it_is_one(form: str, tmp_path: Path) -> None:
    order = (2, 0, 1) if form == "weighed by place" else (0, 1, 2)
    reference = train(tmp_path / "r", form="weighed by place" if form == "weighed by place" else "usual")
    verdict = compare(train(tmp_path / "t", order, form), reference).verdict
    assert verdict.outcome is Outcome.DIFFER
