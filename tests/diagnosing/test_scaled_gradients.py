"""Gradients that are multiplied by a factor in their own dtype, or rounded to a coarser one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import ClippingCode  # noqa: E402
from trueup.types.codes import StagesCode as Stages  # noqa: E402

Change = Callable[[Tensor], Tensor]


def trained(folder: Path, dtype: torch.dtype, change: Change | None = None) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = ["module", "parameter", "labels", "configuration"]
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=values):
        model(torch.randn(8, 16).to(dtype)).float().square().mean().backward()
        for one in model.parameters():
            if change is not None and one.grad is not None:
                one.grad.copy_(change(one.grad))
        optimizer.step()
    return folder


@pytest.mark.parametrize(
    ("dtype", "change", "is_rounded"),
    [
        (torch.bfloat16, lambda grad: grad * 0.3586, False),
        (torch.float32, lambda grad: (grad * 0.3586).bfloat16().float(), True),
    ],
    ids=["scaled in its own dtype", "through a coarser dtype"],
)
def test_a_factor_rounds_in_the_dtype_of_the_gradient(
    dtype: torch.dtype, change: Change, is_rounded: bool, tmp_path: Path
) -> None:
    runs = trained(tmp_path / "run", dtype, change), trained(tmp_path / "reference", dtype)
    found = diagnose(*runs, output=tmp_path / "out").findings
    codes = {one.headline.code for one in found}
    assert (Stages.ROUNDED in codes) is is_rounded
    assert codes & set(ClippingCode) or is_rounded
