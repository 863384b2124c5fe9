"""Gradients of a norm whose calls have no counterpart, which a replay gives nothing: the traces decide."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import trueup
from trueup.comparing.result import Comparison
from trueup.comparing.run import compare
from trueup.diagnosing.pipeline import _unreached, diagnose
from trueup.importers import open_trace
from trueup.types.codes import StagesCode
from trueup.types.finding import Basis, Origin, Stage

pytestmark = pytest.mark.torch

HEADS, WIDTH = 4, 16


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Model(nn.Module):
    """Queries and keys that are normed before they are turned, or after: a turn keeps their size."""

    def __init__(self, *, after: bool) -> None:
        super().__init__()
        self.after = after
        self.q_proj, self.k_proj = nn.Linear(8, HEADS * WIDTH), nn.Linear(8, HEADS * WIDTH)
        self.q_norm, self.k_norm = Norm(), Norm()

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], HEADS, WIDTH)
        if self.after:
            q, k = (turned(one(x).view(shape).transpose(1, 2)) for one in (self.q_proj, self.k_proj))
            q, k = self.q_norm(q), self.k_norm(k)
        else:
            q = turned(self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2))
            k = turned(self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2))
        return q + k.square()


def turned(x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[2])[:, None] * torch.linspace(0.2, 1.0, WIDTH // 2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def train(folder: Path, *, after: bool = False) -> Path:
    torch.manual_seed(0)
    model = Model(after=after)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    target = torch.randn(2, HEADS, 6, WIDTH)
    with trueup.Tracer(
        folder, level="L0", steps="0", store_values_of=["configuration", "module", "parameter"]
    ):
        (model(torch.randn(2, 6, 8)) - target).square().mean().backward()
        optimizer.step()
    return folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("runs")
    return compare(train(folder / "target", after=True), train(folder / "reference"))


def gradient(module: str, phase: str = "param_grad") -> Origin:
    numbers = {
        "step": 0,
        "rank": 0,
        "microbatch": 0,
        "order": 9,
        "score": 20.0,
        "rel_l2": 0.3,
        "tolerance": 0.02,
    }
    place = {"stage": Stage.BACKWARD, "module": module, "site": module, "phase": phase, "slot": "local"}
    return Origin(basis=Basis.BOUND, target_record=None, reference_record=None, **place, **numbers)


def test_a_norm_after_a_turn(found: Comparison) -> None:
    (kept,) = _unreached([gradient("q_norm")], (), found)
    shapes = kept.evidence[0]
    assert shapes.code is StagesCode.GIVEN_SHAPES
    assert (shapes.place("target"), shapes.place("reference")) == ("[2, 4, 6, 16]", "[2, 6, 4, 16]")


@pytest.mark.parametrize(
    ("origin", "replayed"),
    [
        (gradient("q_proj"), ()),
        (gradient("k_norm"), ()),
        (gradient("q_norm", "backward"), ()),
        (gradient("q_norm"), [gradient("q_norm")]),
    ],
    ids=["calls agree", "calls are paired", "no weight's gradient", "the replay tells of it"],
)
def test_what_a_replay_reaches_it_decides(
    origin: Origin, replayed: Sequence[Origin], found: Comparison
) -> None:
    assert _unreached([origin], replayed, found) == ()


TWO_STEPS = """
import sys

import torch

sys.path.insert(0, {root!r})
from tests.diagnosing.test_unreached import HEADS, WIDTH, Model

torch.manual_seed(0)
model = Model(after=sys.argv[1] == "after")
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for step in range(2):
    x, target = torch.randn(2, 6, 8), torch.randn(2, HEADS, 6, WIDTH)
    (model(x) - target).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_an_origin_of_a_step_that_no_replay_went_through(tmp_path: Path) -> None:
    """The traces have two steps; a replay goes through the first alone."""
    program = tmp_path / "program.py"
    program.write_text(TWO_STEPS.format(root=str(Path(__file__).parents[2])), encoding="utf-8")
    commands = {how: [sys.executable, str(program), how] for how in ("after", "before")}
    for how, command in commands.items():
        capture = [sys.executable, "-m", "trueup", "capture", "--preset", "diagnose", "-o"]
        subprocess.run([*capture, str(tmp_path / how), "--", *command], check=True, capture_output=True)
    made = diagnose(
        tmp_path / "after", tmp_path / "before", output=tmp_path / "out", command=commands["after"]
    )
    assert sorted(open_trace(tmp_path / "out" / "replay").steps()) == [0]
    assert made.findings[0].module in ("q_norm", "k_norm")
