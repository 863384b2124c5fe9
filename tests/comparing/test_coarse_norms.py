"""Norms that round a number of each row, told from those that round elements alone, in whatever way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueup
from trueup.comparing.coarse_norms import NormCall, rounds_inside
from trueup.comparing.run import compare
from trueup.types.codes import VerdictCode
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

pytestmark = pytest.mark.torch

EPS = 1e-5
Norm = Callable[[Tensor, Tensor, Tensor], Tensor]
UNITS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def standard(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + EPS)


ELEMENTS: dict[str, Norm] = {
    "rounded before the weight": lambda x, w, b: w * unit(x.float()).to(x.dtype),
    "rounded once": lambda x, w, b: (unit(x.float()) * w.float()).to(x.dtype),
    "one more than the weight": lambda x, w, b: (unit(x.float()) * (1 + w.float())).to(x.dtype),
    "one more, rounded before": lambda x, w, b: unit(x.float()).to(x.dtype) * (1 + w),
    "one kernel": lambda x, w, b: F.rms_norm(x, (x.shape[-1],), w, EPS),
    "layer norm": lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b, EPS),
    "layer norm in float32": lambda x, w, b: (standard(x.float()) * w.float() + b.float()).to(x.dtype),
    "layer norm, rounded thrice": lambda x, w, b: standard(x.float()).to(x.dtype) * w + b,
    "layer norm, rounded twice": lambda x, w, b: torch.addcmul(b, standard(x.float()).to(x.dtype), w),
}
ROWS: dict[str, Norm] = {
    "all in the coarse dtype": lambda x, w, b: w * unit(x),
    "the size of a row": lambda x, w, b: (
        w * (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS).to(x.dtype))
    ),
    "layer norm": lambda x, w, b: standard(x) * w + b,
}
WITH_BIAS = {name for name in (*ELEMENTS, *ROWS) if name.startswith("layer norm")}


def given(norm: Norm, name: str, dtype: torch.dtype, width: int, offset: float, seed: int) -> NormCall:
    random = torch.Generator().manual_seed(seed)
    x = (torch.randn(96, width, generator=random) * 2 + offset).to(dtype)
    w, b = (0.1 * torch.randn(2, width, generator=random)).to(dtype)
    w = (w.float() + 1).to(dtype)
    x64, y64, w64, b64 = (t.double().numpy() for t in (x, norm(x, w, b), w, b))
    bias = b64 if name in WITH_BIAS else None
    return NormCall(x64, y64, w64, bias, str(dtype).removeprefix("torch."), UNITS[dtype])


@pytest.mark.parametrize("dtype", UNITS, ids=str)
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_rounded_for_themselves(name: str, dtype: torch.dtype) -> None:
    """Also where a row's size is near 1, so that elements of one mantissa are rounded back alike."""
    for width in (8, 64, 1024):
        for offset in (0.0, 3.0):
            for seed in range(3):
                case = given(ELEMENTS[name], name, dtype, width, offset, seed)
                assert rounds_inside(case, [EPS]) is False, (width, offset, seed)


@pytest.mark.parametrize("dtype", UNITS, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_a_number_of_the_row_that_is_rounded(name: str, dtype: torch.dtype) -> None:
    for width in (64, 256, 1024):
        for offset in (0.0, 3.0):
            for seed in range(3):
                case = given(ROWS[name], name, dtype, width, offset, seed)
                assert rounds_inside(case, [EPS]) is True, (width, offset, seed)


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "another epsilon": lambda square: torch.rsqrt(square + 0.01),
    "epsilon outside the root": lambda square: 1 / (square.sqrt() + 0.01),
    "a mean over one number less": lambda square: torch.rsqrt(square * 65 / 64 + EPS),
}


@pytest.mark.parametrize("dtype", UNITS, ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_another_formula_is_no_rounding(name: str, dtype: torch.dtype) -> None:
    """Its rows are off together, by a smooth function of their sizes."""
    for width in (64, 1024):
        for seed in range(3):
            random = torch.Generator().manual_seed(seed)
            x = torch.randn(96, width, generator=random) * torch.linspace(-1, 1, 96)[:, None].exp2()
            x = x.to(dtype)
            y = (x.float() * FORMULAS[name](x.float().pow(2).mean(-1, keepdim=True))).to(dtype)
            sides = x.double().numpy(), y.double().numpy()
            case = NormCall(*sides, None, None, str(dtype).removeprefix("torch."), UNITS[dtype])
            assert rounds_inside(case, [EPS]) is not True, (width, seed)


def test_what_is_no_norm_and_what_cannot_be_told() -> None:
    dtype = torch.bfloat16
    assert rounds_inside(given(lambda x, w, b: x * w, "", dtype, 64, 0.0, 0), [EPS]) is None
    assert rounds_inside(given(lambda x, w, b: F.softmax(x, -1), "", dtype, 64, 0.0, 0), [EPS]) is None
    low = given(ROWS["all in the coarse dtype"], "", dtype, 64, 0.0, 0)
    few = NormCall(low.x[:16], low.y[:16], low.weight, None, low.dtype, low.roundoff)
    assert rounds_inside(few, [EPS]) is None


class Model(nn.Module):
    """A norm of its own code between two products."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.emb, self.norm, self.out = nn.Embedding(64, 64), OwnNorm(norm), nn.Linear(64, 64)
        self.to(torch.bfloat16)

    def forward(self, ids: Tensor) -> Tensor:
        made: Tensor = self.out(self.norm(self.emb(ids)))
        return made


class OwnNorm(nn.Module):
    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.weight, self.made, self.eps = nn.Parameter(torch.ones(64)), norm, EPS

    def forward(self, x: Tensor) -> Tensor:
        return self.made(x, self.weight, torch.zeros_like(self.weight))


def verdict(folder: Path, *norms: Norm, values: bool = True, level: str = "L0") -> Verdict:
    for name, norm in zip(("target", "reference"), norms, strict=True):
        torch.manual_seed(0)
        model = Model(norm)
        ids = torch.arange(48).reshape(4, 12)
        with trueup.Tracer(folder / name, level=level, steps="0", task="tensor" if values else "statistics"):
            F.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten()).backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    return compare(folder / "target", folder / "reference").verdict


LOW, HIGH = ROWS["all in the coarse dtype"], ELEMENTS["rounded before the weight"]


@pytest.mark.parametrize("target_is_coarse", [True, False])
def test_the_side_that_rounds_is_named(target_is_coarse: bool, tmp_path: Path) -> None:
    found = verdict(tmp_path, *((LOW, HIGH) if target_is_coarse else (HIGH, LOW)))
    dtypes = ("bfloat16", "float32") if target_is_coarse else ("float32", "bfloat16")
    assert found.headline.code is VerdictCode.COMPUTES_IN
    assert (found.headline.place("target"), found.headline.place("reference")) == dtypes
    assert (found.owner, found.outcome) == ("norm", Outcome.DIFFER)


def test_the_dtype_of_a_mean_says_so_without_values(tmp_path: Path) -> None:
    found = verdict(tmp_path, LOW, HIGH, values=False, level="mix")
    assert (found.headline.code, found.owner) == (VerdictCode.COMPUTES_IN, "norm")


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("other", ["rounded once", "one kernel"])
def test_another_way_to_write_it_is_quiet(other: str, values: bool, tmp_path: Path) -> None:
    level = "L0" if values else "mix"
    assert verdict(tmp_path, ELEMENTS[other], HIGH, values=values, level=level).outcome is Outcome.AGREE


def test_two_coarse_ones_are_quiet(tmp_path: Path) -> None:
    assert verdict(tmp_path, ROWS["the size of a row"], LOW).outcome is Outcome.AGREE
