"""Real captures of one small network, spelled in several ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.comparing.reading import facts
from trueup.comparing.run import compare
from trueup.types.codes import NoteCode

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from trueup import Tracer  # noqa: E402

Norm = Callable[[Any, Any, float], Any]


def rms(x: Any, eps: float) -> Any:
    """x (..., hidden) over its root mean square, in float32."""
    y = x.float()
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)


def captured(path: Path, norm: Norm, *, eps: float = 1e-6, swapped: bool = False, skew: float = 1.0) -> Path:
    """Two steps of a residual block behind ``norm(x, weight, eps)``."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(1 + 0.3 * torch.randn(32))
            self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

        def forward(self, x: Any) -> Any:
            y = norm(x, self.scale, eps).to(x.dtype)
            y = self.down(torch.nn.functional.gelu(self.up(y))) * skew
            return y + x if swapped else x + y

    torch.manual_seed(3)
    model = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Tracer(path, level="mix", steps="0-1"):
        for _ in range(2):
            loss = model(torch.randn(8, 32)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return path


def plain(x: Any, weight: Any, eps: float) -> Any:
    """The weight as it is."""
    return rms(x, eps) * weight


def rounded(x: Any, weight: Any, eps: float) -> Any:
    """The weight by way of bfloat16."""
    return rms(x, eps) * weight.to(torch.bfloat16)


def turned(x: Any, weight: Any, eps: float) -> Any:
    """The factors the other way round."""
    return weight * rms(x, eps)


def test_operands_turned_are_equal(tmp_path: Path) -> None:
    reference = captured(tmp_path / "reference", plain)
    result = compare(captured(tmp_path / "target", turned, swapped=True), reference)
    assert result.exit_code == 0, result.summary["verdict"]
    assert result.summary["counts"]["different"] == 0
    status = result.frame()["status"].cast(str).value_counts()
    assert status["status"].to_list() == ["equal"], status


def test_operands_turned_hide_no_fault(tmp_path: Path) -> None:
    reference = captured(tmp_path / "reference", plain)
    result = compare(captured(tmp_path / "target", turned, swapped=True, skew=1.01), reference)
    assert result.exit_code == 1
    assert result.summary["verdict"]["where"].startswith("0"), result.summary["verdict"]
    assert "mul" in result.summary["verdict"]["where"]


def test_weight_not_cast_before_a_multiplication(tmp_path: Path) -> None:
    reference = captured(tmp_path / "reference", rounded)
    result = compare(captured(tmp_path / "target", plain), reference)
    assert result.exit_code == 1, result.summary["verdict"]
    notes = [part for note in result.content.notes for part in note.parts]
    assert facts(notes, NoteCode.WEIGHT_NOT_CAST) == {"side": "target", "dtypes": "bfloat16"}
