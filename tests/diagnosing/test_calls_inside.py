"""Where a replay names a module and no cause, the call inside it that the traces name, or how to get them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

from tests.diagnosing.replaying import capture  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.replay.plan import build_plan  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.codes import NextCode, VerdictCode  # noqa: E402
from trueup.types.codes import StagesCode as Stages  # noqa: E402
from trueup.types.reason import Reason  # noqa: E402

SIZE = 8
WEIGHTS = torch.rand(4, 1, generator=torch.Generator().manual_seed(6)) + 0.5


class Turned(nn.Module):
    """Turned by angles of a table that the program makes of plain numbers."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.lin = nn.Linear(SIZE, SIZE)
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        table = torch.from_numpy(np.arange(SIZE, dtype=np.float32) ** self.power)
        h = self.lin(x)
        angles = torch.outer(torch.linspace(0.5, 1.5, len(x)), table)
        other = angles.cos() if os.environ.get("FORM") == "cosine" else angles.sin()
        return torch.tanh(h * angles.cos() + h.flip(-1) * other)


class Model(nn.Module):
    def __init__(self, power: float) -> None:
        super().__init__()
        self.first, self.turn, self.last = nn.Linear(SIZE, SIZE), Turned(power), nn.Linear(SIZE, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.turn(self.first(x)))


def training() -> None:
    """With a power that no statement shows."""
    torch.manual_seed(5)
    model = Model(float(os.environ["POWER"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = model(torch.randn(4, SIZE))
    errors = out.abs() if os.environ.get("FORM") == "absolute" else out.square()
    (errors * WEIGHTS).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def diagnosed(
    folder: Path, level: str, power: str, monkeypatch: pytest.MonkeyPatch, form: str = "usual"
) -> Diagnosis:
    monkeypatch.setenv("POWER", "1.0")
    known = capture(folder / "r", training, level=level, task="tensor")
    monkeypatch.setenv("POWER", power)
    monkeypatch.setenv("FORM", form)
    free = capture(folder / "t", training, level=level)
    plan = build_plan(free, Trace(known.path), folder / "again" / "plan", level="L0", steps={0})
    again = capture(folder / "again", training, replay=str(plan.folder))
    return diagnose(free.path, known.path, output=folder / "out", replay=again.path)


def first_calls(found: Diagnosis) -> list[Reason]:
    return [one for f in found.findings for one in f.evidence if one.code is Stages.FIRST_CALL]


def test_the_call_is_told_with_the_lines_of_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = diagnosed(tmp_path, "mix", "1.3", monkeypatch)
    assert found.findings[0].module == "turn"
    (call,) = first_calls(found)
    assert "outer" in str(call.place("call"))
    assert call.place("target") == call.place("reference")
    assert "test_calls_inside.py:" in str(call.place("target"))


def test_without_calls_the_next_step_is_to_capture_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No statement of the two programs differs that could be told."""
    found = diagnosed(tmp_path, "L0", "1.3", monkeypatch)
    assert found.findings[0].module == "turn"
    assert first_calls(found) == []
    assert found.findings[0].next is not None
    assert found.findings[0].next.code is NextCode.CAPTURE_CALLS_TOO


def test_runs_that_agree_have_no_such_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnosed(tmp_path, "mix", "1.0", monkeypatch).findings == ()


@pytest.mark.parametrize(
    ("form", "functions", "phase"),
    [
        ("cosine", ("torch.Tensor.cos", "torch.Tensor.sin"), "forward"),
        ("absolute", ("torch.Tensor.abs", "torch.Tensor.square"), "loss"),
    ],
)
def test_another_function_of_equal_inputs_is_the_headline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, functions: tuple[str, str], phase: str
) -> None:
    """Not what its results look like beside the reference's: cosines are among those of the line before."""
    finding = diagnosed(tmp_path, "mix", "1.0", monkeypatch, form).findings[0]
    assert (finding.headline.code, finding.phase) == (VerdictCode.FUNCTION_IN_PLACE, phase)
    assert (finding.headline.place("target"), finding.headline.place("reference")) == functions
    assert {kind.name for kind in finding.kinds[:1]} <= {"wrong_scale", "other_functions"}
