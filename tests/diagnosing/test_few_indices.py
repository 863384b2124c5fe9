"""A tensor that differs at few indices of one dimension, and weights that one run alone uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.diagnosing.stages.from_origin import few_indices  # noqa: E402
from trueup.types.arrays import Floats  # noqa: E402
from trueup.types.codes import StagesCode as Stages  # noqa: E402
from trueup.types.reason import Reason  # noqa: E402

ONE = np.random.default_rng(2).standard_normal((6, 8, 5))


def changed(*at: object) -> Floats:
    other = ONE.copy()
    other[at] += 1.0
    return other


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (changed(slice(None), 0), (1, [0])),
        (changed([2]), (0, [2])),
        (changed(slice(None), [1, 7]), (1, [1, 7])),
        (changed(slice(None), slice(0, 3)), None),  # 3 of 8
        (changed(slice(None), slice(None), slice(0, 2)), None),
        (changed(3, 2), (1, [2])),  # of one sample's one position, the longer dimension
        (ONE.copy(), None),
    ],
)
def test_few_indices(other: Floats, found: tuple[int, list[int]] | None) -> None:
    assert few_indices(other, ONE) == found
    assert few_indices(ONE, other) == found


Shift = Callable[[Tensor], Tensor]


def padded(x: Tensor) -> Tensor:
    return nn.functional.pad(x, (0, 0, 1, -1))


class Mixed(nn.Module):
    """A position and the one before, mixed by a weight."""

    def __init__(self, shift: Shift, *, uses_scale: bool) -> None:
        super().__init__()
        self.shift, self.uses_scale = shift, uses_scale
        self.mix, self.out = nn.Linear(12, 12), nn.Linear(12, 12)
        self.scale = nn.Parameter(torch.full((12,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale if self.uses_scale else torch.full((12,), 1.25)
        return self.out((0.7 * x + 0.3 * self.shift(x)) * scale) + self.mix(x)


def trained(folder: Path, shift: Shift, *, uses_scale: bool = True) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), Mixed(shift, uses_scale=uses_scale), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", task="tensor", steps="0"):
        model(torch.randn(4, 9, 6)).square().mean().backward()
        optimizer.step()
    return folder


def evidence(tmp_path: Path, shift: Shift, *, uses_scale: bool = True) -> list[Reason]:
    pair = trained(tmp_path / "t", shift, uses_scale=uses_scale), trained(tmp_path / "r", padded)
    return [one for found in diagnose(*pair, output=tmp_path / "out").findings for one in found.evidence]


def test_the_first_position_alone(tmp_path: Path) -> None:
    (found,) = [one for one in evidence(tmp_path, lambda x: x.roll(1, 1)) if one.code is Stages.APART_AT]
    assert (found.number("num"), found.number("size"), found.number("dim")) == (1, 9, 1)
    assert found.facts["indices"] == ("0",)


def test_every_position_is_no_place(tmp_path: Path) -> None:
    assert Stages.APART_AT not in [one.code for one in evidence(tmp_path, lambda x: x.roll(2, 1))]


@pytest.mark.parametrize("uses_scale", [False, True])
def test_a_weight_that_the_target_does_not_use(tmp_path: Path, uses_scale: bool) -> None:
    found = evidence(tmp_path, lambda x: x.roll(1, 1), uses_scale=uses_scale)
    unreached = [one for one in found if one.code is Stages.UNREACHED and one.facts.get("side")]
    assert bool(unreached) is not uses_scale
    assert all("1.scale" in str(one.facts["parameters"]) for one in unreached)
