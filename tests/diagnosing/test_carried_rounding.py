"""Rounding that grows on its way: each call has the reference's results for the reference's inputs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import polars as pl
import pytest
import torch
from torch import Tensor, nn

from tests.diagnosing.replaying import capture, replay
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.pipeline import _begins_alike, diagnose
from trueup.diagnosing.stages.context import Context
from trueup.types.codes import StagesCode
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch
STEEP = 3e3
"""what the second module multiplies its input's rounding by"""


class Added(nn.Module):
    """A product, its parts added up in one of two orders."""

    def __init__(self, *, halves: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 64))
        self.halves = halves

    def forward(self, x: Tensor) -> Tensor:
        if not self.halves:
            return x @ self.weight.T
        return x[:, 32:] @ self.weight[:, 32:].T + x[:, :32] @ self.weight[:, :32].T


class Steep(nn.Module):
    """A sine of many periods; ``factor`` is the fault's."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(STEEP * x) * self.factor


def program(*, halves: bool, factor: float, dtype: torch.dtype) -> None:
    """One step."""
    torch.manual_seed(0)
    model = nn.Sequential(Added(halves=halves), Steep(factor), nn.Linear(32, 1)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(16, 64).to(dtype)).square().mean().backward()
    optimizer.step()


def diagnosed(folder: Path, *, factor: float, dtype: torch.dtype = torch.float32) -> Diagnosis:
    """Parts added up in another order, a factor besides."""
    made, reference, _ = replay(
        folder,
        lambda: program(halves=False, factor=1.0, dtype=dtype),
        lambda: program(halves=True, factor=factor, dtype=dtype),
    )
    free = capture(folder / "target", lambda: program(halves=True, factor=factor, dtype=dtype), task="tensor")
    return diagnose(free.path, reference.path, output=folder / "out", replay=made.path)


def test_carried_rounding_is_agreement(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, factor=1.0)
    assert found.outcome is Outcome.AGREE
    assert found.headline.code is StagesCode.CALLS_AGREE
    assert StagesCode.ONLY_CARRIED in [stage.conclusion.code for stage in found.stages]


def test_a_call_that_errs_by_less_than_what_is_carried_is_found(tmp_path: Path) -> None:
    """A factor of which the free runs show nothing: a thousandth, where they differ by a hundredth."""
    found = diagnosed(tmp_path, factor=1.001)
    assert found.outcome is Outcome.DIFFER
    assert found.findings[0].module == "1"


def test_without_a_replay_nothing_is_said_to_agree(tmp_path: Path) -> None:
    reference = capture(
        tmp_path / "reference", lambda: program(halves=False, factor=1.0, dtype=torch.float32), task="tensor"
    )
    free = capture(
        tmp_path / "target", lambda: program(halves=True, factor=1.0, dtype=torch.float32), task="tensor"
    )
    found = diagnose(free.path, reference.path, output=tmp_path / "out")
    assert found.outcome is not Outcome.AGREE


def test_not_in_a_coarse_dtype(tmp_path: Path) -> None:
    """What bfloat16 does to one call may hide a fault."""
    found = diagnosed(tmp_path, factor=1.0, dtype=torch.bfloat16)
    assert found.headline.code is not StagesCode.CALLS_AGREE


@pytest.mark.parametrize(
    ("weights", "status", "alike"),
    [
        ((1e-5, 0.0), "propagated", True),
        ((1.9e-5, 0.0), "propagated", True),
        ((2.1e-5, 0.0), "propagated", False),
        ((1e-5, None), "unmatched", False),
        ((), "equal", False),
    ],
    ids=["as the gradients", "and rounding", "more", "one that is not compared", "none"],
)
def test_an_update_that_nobody_recorded_is_told_by_the_next_weights(
    weights: tuple[float | None, ...], status: str, alike: bool
) -> None:
    """Gradients that are 1e-5 apart make weights that are so at most."""
    rows = {
        0: pl.DataFrame({"status": ["origin", "equal"], "rel_l2": [1e-5, 0.0]}),
        1: pl.DataFrame({"status": ["within_noise", status][: len(weights)], "rel_l2": weights}),
    }

    def of_phases(*phases: str, at: int = 0) -> pl.DataFrame:
        assert phases == (("param",) if at else ("param_grad",))
        return rows[at]

    context = SimpleNamespace(steps=((0, 0), (1, 1)), of_phases=of_phases)
    assert _begins_alike(cast(Context, context)) is alike
