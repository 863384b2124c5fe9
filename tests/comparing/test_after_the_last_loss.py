"""What a step evaluates after its last loss, of which the next loss is made, beside another form of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueup
from trueup.comparing.run import compare
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch

WIDTH = 16


@dataclass(frozen=True, kw_only=True)
class Program:
    """A model with an adapter that is trained against itself without it."""

    adapter_stays: bool = False
    """in the evaluation"""
    scales_first: bool = False
    """in the evaluation: another form of the same"""


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(4, WIDTH, bias=False)
        self.down = nn.Linear(WIDTH, 4, bias=False)
        nn.init.zeros_(self.up.weight)
        self.enabled, self.scales_first = True, False

    def forward(self, x: Tensor) -> Tensor:
        if not self.enabled:
            return self.base(x)
        return self.base(x) + (self.up(self.down(2 * x)) if self.scales_first else 2 * self.up(self.down(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Adapted(), nn.Tanh(), Adapted())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def train(folder: Path, program: Program) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model().to(torch.bfloat16)
    trained = [p for n, p in model.named_parameters() if "base" not in n]
    optimizer = torch.optim.SGD(trained, lr=0.5)
    random = torch.Generator().manual_seed(1)
    with trueup.Tracer(
        folder, level="L0", steps="0-1", store_values_of=["configuration", "module", "parameter"]
    ):
        for _ in range(2):
            x = torch.randn(8, WIDTH, generator=random).to(torch.bfloat16)
            adapted = [one for one in model.modules() if isinstance(one, Adapted)]
            with torch.no_grad():
                for one in adapted:
                    one.enabled, one.scales_first = program.adapter_stays, program.scales_first
                before = model(x)
                for one in adapted:
                    one.enabled, one.scales_first = True, False
            F.softplus(-((model(x) - before).float() * x.flip(1)).sum(1)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def test_what_is_evaluated_for_the_next_loss(tmp_path: Path) -> None:
    target = train(tmp_path / "target", replace(Program(), adapter_stays=True))
    found = compare(target, train(tmp_path / "reference", Program())).verdict
    assert (found.outcome, found.owner, found.step) == (Outcome.DIFFER, "layers.0", 0)
    assert found.phase == "forward"


def test_another_form_of_the_evaluation_agrees(tmp_path: Path) -> None:
    stays = Program(adapter_stays=True)
    target = train(tmp_path / "target", replace(stays, scales_first=True))
    assert compare(target, train(tmp_path / "reference", stays)).verdict.outcome is Outcome.AGREE
