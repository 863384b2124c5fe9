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


def train(*, frozen: bool, places: int) -> None:
    """``places``: by how many last places an element of the first layer is moved after the first step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).bfloat16()
    model[0].requires_grad_(not frozen)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        model(torch.ones(3, 8, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model[0].weight.view(torch.int16)[0, 0] += places


def compared(folder: Path, *, frozen: bool, places: int = 1, both: bool = False) -> Verdict:
    capture(folder / "target", lambda: train(frozen=frozen, places=places), level="L0", steps="0-1")
    of_reference = places + 1 if both else 0
    capture(folder / "reference", lambda: train(frozen=frozen, places=of_reference), level="L0", steps="0-1")
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


def test_untouched(tmp_path: Path) -> None:
    assert compared(tmp_path, frozen=True, places=0).outcome is Outcome.AGREE
