"""A model beside the one that trains, evaluated with other running statistics, is one finding; batch norms
that are written otherwise are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from tests.diagnosing.replaying import replay  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.gradients import VALUES  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import StagesCode  # noqa: E402


class Net(nn.Module):
    """Two batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 6) to (rows, 2)."""
        return self.head(self.two(self.one(x).relu()))  # type: ignore[no-any-return]


def by_hand(self: nn.BatchNorm1d, x: Tensor) -> Tensor:
    """With a larger eps in evaluation."""
    eps = self.eps if self.training else 0.5
    mean, var = self.running_mean, self.running_var
    return nn.functional.batch_norm(x, mean, var, self.weight, self.bias, self.training, 0.1, eps)


def taught(*, follows: bool = True, other_weights: bool = False) -> Callable[[], None]:
    """Trained on what a copy says; ``follows``: the copy has the model's running statistics."""

    def run() -> None:
        torch.manual_seed(0)
        model = Net()
        teacher = copy.deepcopy(model).requires_grad_(False).eval()
        x = torch.randn(8, 6) * 3 + 1
        said = model(x)
        if follows:
            teacher.load_state_dict(model.state_dict())
        with torch.no_grad():
            if other_weights:
                teacher.head.weight.mul_(1.5)
            taken = teacher(x)
        (said - taken).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    return run


def diagnosed(folder: Path, target: Callable[[], None]) -> Diagnosis:
    replay(folder, taught(), target)
    with trueup.Tracer(folder / "target", level="L0", steps="0", store_values_of=VALUES):
        target()
    return diagnose(folder / "target", folder / "reference", output=folder / "out", replay=folder / "replay")


def test_other_running_statistics_are_one_finding(tmp_path: Path) -> None:
    (found,) = diagnosed(tmp_path, taught(follows=False)).findings
    assert found.headline.code is StagesCode.EVALUATED_STATISTICS
    assert found.headline.number("num") == 2
    assert not found.kinds


def test_other_weights_are_no_statistics(tmp_path: Path) -> None:
    (found,) = diagnosed(tmp_path, taught(other_weights=True)).findings
    assert found.headline.code is StagesCode.EVALUATED_WEIGHTS


def test_norms_that_are_written_otherwise_are_told_by_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = taught()

    def patched() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(nn.BatchNorm1d, "forward", by_hand)
            target()

    found = diagnosed(tmp_path, patched).findings
    assert found
    assert not any(
        StagesCode.EVALUATED_STATISTICS in (one.headline.code, *(part.code for part in one.headline.parts))
        for one in found
    )
