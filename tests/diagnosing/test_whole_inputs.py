"""Whole numbers that the program gives the model, in half precision in one run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.numerics.whole_numbers import lost_whole_numbers  # noqa: E402
from trueup.types.codes import EvidenceCode  # noqa: E402
from trueup.types.codes import StagesCode as Stages  # noqa: E402


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time, self.out = nn.Linear(8, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        angle = at.float()[:, None] / 1000.0 ** (torch.arange(8) / 8)
        return self.out(x + self.time(angle.sin()))


def trained(path: Path, times: Tensor) -> Path:
    torch.manual_seed(1)
    model = Denoiser()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(4, 16)
    with trueup.Tracer(path, level="L0", steps="0", task="tensor"):
        model(x, times).square().mean().backward()
        optimizer.step()
    return path


TIMES = torch.tensor([3, 601, 120, 999])


@pytest.mark.parametrize(
    ("given", "rounded"),
    [(TIMES.bfloat16(), True), (TIMES.half(), None), (TIMES + 1, False), (TIMES.bfloat16() + 8, False)],
    ids=["bfloat16", "float16 holds them", "others", "others in bfloat16"],
)
def test_timesteps_in_half_precision(given: Tensor, rounded: bool | None, tmp_path: Path) -> None:
    reference = trained(tmp_path / "reference", TIMES)
    found = diagnose(trained(tmp_path / "target", given), reference, output=tmp_path / "out").findings
    said = [one for finding in found for one in finding.evidence if one.code is EvidenceCode.WHOLE_ROUNDED]
    assert bool(said) is bool(rounded)
    if rounded:
        assert found[0].headline.code is Stages.INPUT_ROUNDED
        facts = said[0].facts
        assert (facts["num"], facts["number"], facts["becomes"]) == (2, 601.0, 600.0)


@pytest.mark.parametrize(
    ("rounded", "whole", "known"),
    [
        ([256.0, 2.0], [257.0, 2.0], True),
        ([256.0, 2.0], [256.0, 2.0], False),  # nothing is lost
        ([-9984.0], [-10_000.0], False),  # a mask
        ([256.0], [256.5], False),
        ([258.0], [257.0], False),  # not the nearest
        ([256.0, 2.0], [257.0], False),
        ([np.inf], [np.inf], False),
    ],
)
def test_what_is_lost(rounded: list[float], whole: list[float], known: bool) -> None:
    facts = lost_whole_numbers(np.array(rounded), np.array(whole), "bfloat16")
    assert (facts is not None) is known
