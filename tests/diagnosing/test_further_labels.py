"""Labels of a second loss that go with no tokens are compared as the first loss's are."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.diagnosis import Diagnosis  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import BatchCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402


def trained(folder: Path, *, mixed: bool = True, weight: float = 0.3) -> Path:
    """Mixup: the second loss is that of the samples which were mixed in."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(12, 6), torch.randn(8, 12), torch.arange(8) % 6
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", task="tensor", steps="0"):
        made = model(x)
        second = F.cross_entropy(made, y.flip(0) if mixed else y)
        ((1 - weight) * F.cross_entropy(made, y) + weight * second).backward()
        optimizer.step()
    return folder


def told(folder: Path, **target: object) -> Diagnosis:
    pair = trained(folder / "target", **target), trained(folder / "reference")  # type: ignore[arg-type]
    return diagnose(*pair, output=folder / "diagnosis")


def test_other_labels_of_a_second_loss_are_a_finding(tmp_path: Path) -> None:
    found = told(tmp_path, mixed=False).findings[0]
    assert (found.stage, found.headline.code) == (Stage.DATA, BatchCode.LABELS_DIFFER)


def test_another_weight_of_a_second_loss_is_none_of_labels(tmp_path: Path) -> None:
    findings = told(tmp_path, weight=0.4).findings
    assert findings
    assert all(one.stage is not Stage.DATA for one in findings)
