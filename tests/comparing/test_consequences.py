"""Real captures where one cause has many consequences: the cause heads the verdict, they are no origins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trueup.comparing.run import compare
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.reason import reason

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from trueup import Tracer  # noqa: E402


def captured(path: Path, *, without_bias: bool = False, makes_nan: bool = False) -> Path:
    """Three steps of four residual blocks; the second without a bias, or the third with NaN."""

    class Block(torch.nn.Module):
        def __init__(self, at: int) -> None:
            super().__init__()
            self.up = torch.nn.Linear(16, 32, bias=not (without_bias and at == 1))
            self.down, self.spoils = torch.nn.Linear(32, 16), makes_nan and at == 2

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.up(x))
            return x + self.down(y / (y - y) if self.spoils else y)

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block(at) for at in range(4)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with Tracer(path, level="mix", steps="0-2"):
        for step in range(3):
            loss = model(torch.linspace(-1, 1 + step, 64).view(4, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that is trusted."""
    return captured(tmp_path_factory.mktemp("reference") / "run")


def test_a_parameter_that_one_run_lacks(reference: Path, tmp_path: Path) -> None:
    lacking = captured(tmp_path / "run", without_bias=True)
    for target, other, side in ((lacking, reference, "target"), (reference, lacking, "reference")):
        verdict = compare(target, other).verdict
        names = {"parameter": "1.up.bias", "weight": "1.down.weight"}
        assert verdict.headline == reason(VerdictCode.PARAMETER_ABSENT, side=side, **names)
        assert (verdict.where, verdict.owner, verdict.step) == ("1.up.bias · value", "1.up", 0)
        first = verdict.evidence[0]
        assert (first.code, first.place("name")) == (EvidenceCode.SIZE_OF, "1.down.weight")
        assert first.parts[0].code is EvidenceCode.SIZE
        assert verdict.exit_code == 1


def test_nan_that_was_handed_on(reference: Path, tmp_path: Path) -> None:
    result = compare(captured(tmp_path / "run", makes_nan=True), reference)
    place = {"phase": "forward", "slot": "input.0", "step": 0, "module": "2"}
    assert result.verdict.headline == reason(VerdictCode.NOT_FINITE, **place, what="NaN", side="target")
    rows = result.frame()
    origins = rows.filter(status="origin")
    assert origins.height == 1, origins["site"].to_list()
    optimizer = rows.filter(rows["target_num_nan"] > 0, phase="optimizer")
    assert set(optimizer["status"].cast(str)) == {"propagated"}
