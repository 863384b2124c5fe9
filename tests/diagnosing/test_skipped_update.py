"""A skipped update whose gradients are not cleared: the next step's are added to its infinities."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from tests.adapters.torch.reading import capture  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.codes import ClippingCode, StagesCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402


def train(*, clears: bool, scale: float = 2.0**24) -> None:
    """The first step overflows; ``clears``: its gradients, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, backoff_factor=2.0**-14)
    x = torch.randn(3, 6, 8)
    for batch in x:
        with torch.autocast("cpu", torch.float16):
            loss = model(batch).float().square().mean()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if clears or scaler.get_scale() == before:
            optimizer.zero_grad()


def test_infinities_that_are_kept_are_gradients_not_cleared(tmp_path: Path) -> None:
    for name in ("target", "reference"):
        capture(tmp_path / name, partial(train, clears=name == "reference"), level="L0", steps="0-2")
    found = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out").findings[0]
    assert found.stage is Stage.REDUCTION
    assert found.headline.code is StagesCode.CARRIED


def test_an_update_that_overflow_leaves_out_is_no_missing_optimizer(tmp_path: Path) -> None:
    for name, scale in (("target", 2.0**24), ("reference", 2.0**8)):
        program = partial(train, clears=True, scale=scale)
        capture(tmp_path / name, program, level="L0", steps="0-2")
    found = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out").findings
    assert found[0].headline.code is ClippingCode.LOSS_SCALE
    assert not [one for one in found if one.stage is Stage.OPTIMIZER]
