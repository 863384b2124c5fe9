"""Activation functions in a coarse dtype: two of them, or one computed in several ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.coarse_activations import applied  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.types.arrays import Floats  # noqa: E402
from trueup.types.codes import VerdictCode  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

Activation = Callable[[Tensor], Tensor]
TANH = "gelu with approximate='tanh'"


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def written_out(x: Tensor) -> Tensor:
    """Every step rounded to the dtype of x."""
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x.pow(3))))


def in_float32(x: Tensor) -> Tensor:
    return written_out(x.float()).to(x.dtype)


def sides(one: Activation, other: Activation, dtype: torch.dtype) -> list[tuple[Floats, Floats]]:
    x = (0.7 * torch.randn(64, 96, generator=torch.Generator().manual_seed(0))).to(dtype)
    return [(x.double().numpy(), function(x).double().numpy()) for function in (one, other)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_two_functions_are_told(dtype: str) -> None:
    found = applied(*sides(F.gelu, gelu_tanh, getattr(torch, dtype)), dtype)
    assert found is not None
    assert found[:2] == ("gelu", TANH)


@pytest.mark.parametrize("other", [gelu_tanh, in_float32, written_out])
def test_one_function_in_several_ways_is_one(other: Activation) -> None:
    for one in (gelu_tanh, in_float32):
        assert applied(*sides(one, other, torch.bfloat16), "bfloat16") is None


def test_a_function_that_rounds_inside_is_not_told() -> None:
    """Its numbers are those of neither."""
    assert applied(*sides(F.gelu, written_out, torch.bfloat16), "bfloat16") is None


def test_small_numbers_do_not_tell() -> None:
    x = np.full((64, 96), 2.0**-12)
    assert applied((x, x / 2), (x, x / 2), "bfloat16") is None


class Mlp(nn.Module):
    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.up, self.down, self.activation = nn.Linear(32, 96), nn.Linear(96, 32), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


def trained(folder: Path, activation: Activation) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(Mlp(activation), Mlp(activation)).to(torch.bfloat16)
    x = torch.randn(64, 32, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trueup.Tracer(folder, level="L0", steps="0", task="tensor"):
        model(x).float().square().mean().backward()
        optimizer.step()
    return folder


def test_a_run_with_the_approximation_differs(tmp_path: Path) -> None:
    runs = trained(tmp_path / "target", F.gelu), trained(tmp_path / "reference", gelu_tanh)
    headline = compare(*runs).verdict.headline
    assert (headline.code, headline.place("module")) == (VerdictCode.ACTIVATION_DIFFERS, "0")
    diagnosis = diagnose(*runs, output=tmp_path / "out")
    assert diagnosis.outcome is Outcome.DIFFER
    first = diagnosis.findings[0]
    assert (first.stage, first.module, first.headline) == (Stage.FORWARD, "0", headline)


@pytest.mark.parametrize("other", [in_float32, written_out])
def test_a_run_with_another_kernel_agrees(other: Activation, tmp_path: Path) -> None:
    runs = trained(tmp_path / "target", other), trained(tmp_path / "reference", gelu_tanh)
    assert compare(*runs).exit_code == 0
    assert diagnose(*runs, output=tmp_path / "out").outcome is Outcome.AGREE
