"""A weight that nothing updates keeps its bits: one step in its last place is no rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.adapters.torch.reading import capture
from trueup.comparing.run import compare
from trueup.comparing.verdict import Verdict
from trueup.types.status import Outcome

pytestmark = pytest.mark.torch


WHOLE = {torch.bfloat16: torch.int16, torch.float32: torch.int32}


def train(*, frozen: bool, places: int, dtype: torch.dtype = torch.bfloat16) -> None:
    """``places``: by how many last places an element of the first layer is moved after the first step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).to(dtype)
    model[0].requires_grad_(not frozen)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        model(torch.ones(3, 8, dtype=dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model[0].weight.view(WHOLE[dtype])[0, 0] += places


def compared(
    folder: Path,
    *,
    frozen: bool,
    places: int = 1,
    both: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> Verdict:
    for name, moved in (("target", places), ("reference", places + 1 if both else 0)):
        capture(
            folder / name,
            lambda moved=moved: train(frozen=frozen, places=moved, dtype=dtype),
            level="L0",
            steps="0-1",
        )
    return compare(folder / "target", folder / "reference").verdict


def test_one_side_wrote_to_a_frozen_weight(tmp_path: Path) -> None:
    verdict = compared(tmp_path, frozen=True)
    assert verdict.outcome is Outcome.DIFFER
    assert verdict.step == 1
    assert verdict.phase == "param"


def test_a_trained_weight_may_round(tmp_path: Path) -> None:
    assert compared(tmp_path, frozen=False).outcome is Outcome.AGREE


def test_what_both_write_to_may_round(tmp_path: Path) -> None:
    assert compared(tmp_path, frozen=True, both=True).outcome is Outcome.AGREE


def test_float32_forgives_what_merging_leaves(tmp_path: Path) -> None:
    """Adapters merged for an evaluation and taken out again leave one rounding: the same training."""
    assert compared(tmp_path, frozen=True, dtype=torch.float32).outcome is Outcome.AGREE


def test_untouched(tmp_path: Path) -> None:
    assert compared(tmp_path, frozen=True, places=0).outcome is Outcome.AGREE
