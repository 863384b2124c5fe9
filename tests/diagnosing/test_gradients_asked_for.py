"""Gradients that a program asks for before its loss is there (``autograd.grad``), to weigh parts of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trueup.cli.app import run
from trueup.diagnosing.pipeline import diagnose
from trueup.types.codes import StagesCode, VerdictCode
from trueup.types.finding import KindCode, Stage

pytestmark = pytest.mark.torch

PROGRAM = """
import sys
import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
critic = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
draw = torch.Generator().manual_seed(5)
for _ in range(2):
    x = torch.randn(6, 8, generator=draw)
    y = model(x)
    apart = (x - y).abs()
    part = (apart.sum(1) if sys.argv[1] == "sum" else apart.mean(1)).mean()
    other = -critic(y).mean()
    last = model[2].weight
    sizes = [torch.autograd.grad(one, last, retain_graph=True)[0].norm() for one in (part, other)]
    loss = part + 0.1 * (sizes[0] / (sizes[1] + 1e-4)).detach() * other
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def captured(tmp_path: Path, form: str) -> Path:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), form]
    options = ["--level", "mix", "--preset", "diagnose"]
    assert run(["capture", *options, "-o", str(tmp_path / form), "--", *command]) == 0
    return tmp_path / form


def test_a_loss_that_differs_is_not_said_to_agree(tmp_path: Path) -> None:
    target, reference = captured(tmp_path, "sum"), captured(tmp_path, "mean")
    command = [sys.executable, str(tmp_path / "train.py"), "sum"]
    found = diagnose(target, reference, output=tmp_path / "out", command=command)
    first = found.findings[0]
    assert first.headline.code is VerdictCode.FUNCTION_IN_PLACE or first.kinds[0].name is KindCode.WRONG_SCALE
    assert (first.stage, first.step) == (Stage.FORWARD, 0)
    codes = {one.headline.code for one in found.findings}
    assert StagesCode.LOSS_GRADIENT not in codes
    assert StagesCode.WEIGHTED not in codes
    assert all(one.stage is not Stage.REDUCTION for one in found.findings)
