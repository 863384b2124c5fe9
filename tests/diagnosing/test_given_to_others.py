"""A result of one module that later ones are given in another's place: gradients of both follow from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

from tests.diagnosing.replaying import capture  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.replay.plan import build_plan  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.codes import VerdictCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402

SIZE = 12


class Mixing(nn.Module):
    """Makes a memory of its own, or takes one that another has made."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        held = self.write(x) if memory is None else memory
        sign = -1.0 if memory is None and os.environ["CHANGE"] == "backward" else 1.0
        mixed = torch.tanh(self.read(x)) * held
        if sign < 0:
            mixed = 2 * mixed.detach() - mixed  # the same number, with a gradient of the other sign
        return x + mixed, held


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Mixing() for _ in range(4))
        self.last = nn.Linear(SIZE, 1)

    def forward(self, x: Tensor) -> Tensor:
        made = []
        for block in self.blocks[:2]:
            x, memory = block(x)
            made.append(memory)
        shared = made[0 if os.environ["CHANGE"] == "source" else 1]
        for block in self.blocks[2:]:
            x, _ = block(x, shared)
        return self.last(x)


def training() -> None:
    torch.manual_seed(5)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(6, SIZE)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def diagnosed(folder: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> Diagnosis:
    monkeypatch.setenv("CHANGE", "none")
    known = capture(folder / "r", training, level="L0", task="tensor")
    monkeypatch.setenv("CHANGE", change)
    free = capture(folder / "t", training, level="L0", task="tensor")
    plan = build_plan(free, Trace(known.path), folder / "again" / "plan", level="L0", steps={0})
    again = capture(folder / "again", training, replay=str(plan.folder))
    return diagnose(free.path, known.path, output=folder / "out", replay=again.path)


def test_gradients_of_both_makers_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = diagnosed(tmp_path, "source", monkeypatch).findings
    headline = finding.headline
    assert (finding.stage, headline.code) == (Stage.FORWARD, VerdictCode.GIVEN_ANOTHER)
    assert (headline.place("call"), headline.place("target"), headline.place("reference")) == (
        "blocks.2",
        "blocks.0",
        "blocks.1",
    )


def test_a_gradient_that_the_makers_send_otherwise_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = diagnosed(tmp_path, "backward", monkeypatch).findings
    assert {one.stage for one in findings} == {Stage.BACKWARD}
    assert "blocks.1" in {one.module for one in findings}
