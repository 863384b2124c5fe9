"""A module that casts inside, where no call in it is recorded: its results tell its dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueup
from trueup.comparing.run import compare
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

pytestmark = pytest.mark.torch

BASE, COARSE, HALF = torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True, kw_only=True)
class Program:
    """What the modules of a small model do inside; all they are given and give is in float32."""

    norm: torch.dtype = BASE
    linear: torch.dtype = BASE
    scale: float = 1.0
    """of the second norm's results: a fault"""
    first_scale: float = 1.0
    """of the first norm's"""
    bits: int = 0
    """to which the first norm's results are quantized, by a scale that is a power of two"""
    eager: bool = False


class Norm(nn.Module):
    def __init__(self, program: Program, scale: float, bits: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.7, 1.3, 24))
        self.dtype, self.scale, self.bits, self.eager = program.norm, scale, bits, program.eager

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        size = x.pow(2).mean(-1, keepdim=True)
        y = x / torch.sqrt(size + 1e-6) if self.eager else x * torch.rsqrt(size + 1e-6)
        y = (y * self.weight.to(self.dtype)).float() * self.scale
        return (y * 2.0**self.bits).round() * 2.0**-self.bits if self.bits else y


class Project(nn.Linear):
    def __init__(self, program: Program) -> None:
        super().__init__(24, 24)
        self.dtype = program.linear

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(self.dtype)
        return F.linear(x.to(self.dtype), self.weight.to(self.dtype), bias).float()


class Net(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.first, self.second = (
            Norm(program, program.first_scale, program.bits),
            Norm(program, program.scale),
        )
        self.up, self.down = Project(program), Project(program)

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.tanh(self.up(self.first(x)))
        return self.down(self.second(x))


Judged = Callable[..., Verdict]


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    def ran(program: Program, values: bool, name: str) -> Path:
        kept = {"store_values_of": ["module", "parameter"]} if values else {}
        torch.manual_seed(5)
        model = Net(program)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trueup.Tracer(tmp_path / name, level="L0", steps="0-1", **kept):
            for _ in range(2):
                model(torch.randn(16, 24)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return tmp_path / name

    def verdict(target: Program, reference: Program, values: bool = True) -> Verdict:
        return compare(ran(target, values, "target"), ran(reference, values, "reference")).verdict

    return verdict


@pytest.mark.parametrize("values", [True, False], ids=["values", "extremes"])
@pytest.mark.parametrize("side", ["target", "reference"])
@pytest.mark.parametrize(
    ("coarse", "named", "owner", "modules"),
    [
        (Program(norm=COARSE), "bfloat16", "first", "Norm (2)"),
        (Program(norm=HALF), "float16", "first", "Norm (2)"),
        (Program(linear=COARSE), "bfloat16", "up", "Project (2)"),
        (Program(linear=HALF), "float16", "up", "Project (2)"),
    ],
    ids=["norms bfloat16", "norms float16", "layers bfloat16", "layers float16"],
)
def test_what_a_module_computes_in_is_read_off_its_results(
    coarse: Program, named: str, owner: str, modules: str, side: str, values: bool, judged: Judged
) -> None:
    pair = (coarse, Program()) if side == "target" else (Program(), coarse)
    verdict = judged(*pair, values)
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    assert verdict.headline.place(side) == named
    assert verdict.headline.place("reference" if side == "target" else "target") == "float32"
    assert verdict.owner == owner
    (on_grid,) = [one for one in verdict.evidence if one.code is EvidenceCode.ON_GRID]
    assert (on_grid.place("side"), on_grid.place("dtype")) == (side, named)
    assert bool(on_grid.number("values")) is values
    (by,) = [one for one in verdict.evidence if one.code is EvidenceCode.COMPUTED_BY]
    assert by.place("modules") == (modules,)


@pytest.mark.parametrize("values", [True, False], ids=["values", "extremes"])
def test_a_fault_behind_it_is_said_too(values: bool, judged: Judged) -> None:
    verdict = judged(Program(linear=COARSE, scale=1.5), Program(), values)
    assert verdict.headline.code is VerdictCode.COMPUTES_IN
    (beyond,) = [one for one in verdict.evidence if one.code is EvidenceCode.FIRST_BEYOND]
    assert "second" in str(beyond.place("site"))


@pytest.mark.parametrize("values", [True, False], ids=["values", "extremes"])
@pytest.mark.parametrize(
    "other",
    [
        Program(first_scale=1.003),
        Program(first_scale=2.0),
        Program(bits=3),
        Program(bits=4),
        Program(norm=COARSE, first_scale=1.25),
    ],
    ids=["factor", "power of two", "quantized", "quantized finer", "coarse and scaled"],
)
def test_what_the_dtype_alone_does_not_make_stays_the_first_difference(
    other: Program, values: bool, judged: Judged
) -> None:
    verdict = judged(other, Program(), values)
    assert verdict.outcome is Outcome.DIFFER
    assert verdict.headline.code is not VerdictCode.COMPUTES_IN
    assert verdict.owner == "first"


@pytest.mark.parametrize("values", [True, False], ids=["values", "extremes"])
@pytest.mark.parametrize("dtype", [BASE, COARSE, HALF], ids=str)
def test_another_way_to_compute_in_one_dtype_is_not_another_dtype(
    dtype: torch.dtype, values: bool, judged: Judged
) -> None:
    verdict = judged(Program(norm=dtype, linear=dtype, eager=True), Program(norm=dtype, linear=dtype), values)
    assert verdict.headline.code is not VerdictCode.COMPUTES_IN
    assert not any(one.code is EvidenceCode.ON_GRID for one in verdict.evidence)
