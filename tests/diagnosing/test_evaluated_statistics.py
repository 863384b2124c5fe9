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
from trueup.types.codes.kinds import KindReason  # noqa: E402

FRAMEWORKS = nn.BatchNorm1d.forward


class Wide(nn.BatchNorm1d):
    """With a larger eps in evaluation."""

    def forward(self, input: Tensor) -> Tensor:
        """(rows, 6) to (rows, 6)."""
        if self.training:
            return FRAMEWORKS(self, input)
        mean, var = self.running_mean, self.running_var
        return nn.functional.batch_norm(input, mean, var, self.weight, self.bias, False, 0.1, 0.5)


class Net(nn.Module):
    """Two batch norms."""

    def __init__(self, norm: type[nn.BatchNorm1d]) -> None:
        super().__init__()
        self.one, self.two, self.head = norm(6), norm(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 6) to (rows, 2)."""
        return self.head(self.two(self.one(x).relu()))  # type: ignore[no-any-return]


KEPT: list[nn.Module] = []
"""a program's models are there when a step of it ends: which code runs in them is asked then"""


def taught(
    *, follows: bool = True, other_weights: bool = False, norm: type[nn.BatchNorm1d] = nn.BatchNorm1d
) -> Callable[[], None]:
    """Trained on what a copy says; ``follows``: the copy has the model's running statistics."""

    def run() -> None:
        torch.manual_seed(0)
        model = Net(norm)
        teacher = copy.deepcopy(model).requires_grad_(False).eval()
        KEPT[:] = [] if other_weights else [model, teacher]  # else an average of weights is seen too
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


def patched(program: Callable[[], None]) -> Callable[[], None]:
    """The same with batch norms of the framework patched on their class."""

    def run() -> None:
        nn.BatchNorm1d.forward = Wide.forward  # type: ignore[method-assign]
        program()

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


def test_norms_that_are_written_otherwise_are_no_other_statistics(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, taught(norm=Wide)).findings
    assert found
    assert not any(one.headline.code is StagesCode.EVALUATED_STATISTICS for one in found)


def test_norms_patched_on_their_class_are_written_otherwise(tmp_path: Path) -> None:
    own = nn.BatchNorm1d.forward
    try:
        found = diagnosed(tmp_path, patched(taught())).findings
    finally:
        nn.BatchNorm1d.forward = own  # type: ignore[method-assign]
    assert found
    assert not any(one.headline.code is StagesCode.EVALUATED_STATISTICS for one in found)


def test_other_weights_are_not_said_to_be_another_computation(tmp_path: Path) -> None:
    (found,) = diagnosed(tmp_path, taught(other_weights=True)).findings
    assert not any(isinstance(one.code, KindReason) for one in found.evidence)
