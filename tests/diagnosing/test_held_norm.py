"""A reported norm that follows from which weights an optimizer holds is no finding of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import ClippingCode, StagesCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402

Norm = Callable[[list[nn.Parameter]], Tensor]


def clipped(weights: list[nn.Parameter]) -> Tensor:
    return nn.utils.clip_grad_norm_(weights, 1e4)


def of_matrices(weights: list[nn.Parameter]) -> Tensor:
    """Another mistake: what is held is measured in part."""
    return nn.utils.clip_grad_norm_([w for w in weights if w.ndim > 1], 1e4)


def trained(folder: Path, *, frozen: str = "", norm: Norm = clipped) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    held = [weight for name, weight in model.named_parameters() if name != frozen]
    optimizer = torch.optim.SGD(held, lr=0.1)
    with trueup.Tracer(folder, level="L0") as tracer:
        for _ in range(2):
            model(torch.randn(16, 6)).square().sum().backward()
            norm(held)
            optimizer.step()
            model.zero_grad()
            tracer.step()
    return folder


def told(folder: Path, *, frozen: str = "", norm: Norm = clipped) -> Diagnosis:
    pair = trained(folder / "target", frozen=frozen, norm=norm), trained(folder / "reference")
    return diagnose(*pair, output=folder / "diagnosis")


def codes(diagnosis: Diagnosis, stage: Stage) -> list[str]:
    return [one.headline.code for one in diagnosis.findings if one.stage is stage]


def test_a_norm_of_fewer_held_weights_follows_from_what_is_held(tmp_path: Path) -> None:
    diagnosis = told(tmp_path, frozen="2.weight")
    assert codes(diagnosis, Stage.REDUCTION) == []
    assert diagnosis.findings[0].headline.code is StagesCode.MOVED


def test_a_norm_of_a_part_of_what_is_held_is_a_finding(tmp_path: Path) -> None:
    diagnosis = told(tmp_path, norm=of_matrices)
    assert codes(diagnosis, Stage.REDUCTION) == [ClippingCode.REPORTED_NORM]
