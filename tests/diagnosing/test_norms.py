"""What a norm did, told from input and output: its eps, and its form; nothing where both do the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.diagnosing.cases import case, pair
from trueup.diagnosing.evidence import Surroundings
from trueup.diagnosing.kinds import name_kinds
from trueup.types.codes.kinds import KindReason, NormForm
from trueup.types.finding import Kind
from trueup.types.reason import reason

pytestmark = pytest.mark.torch
Norm = Callable[[Tensor, Tensor], Tensor]
X = (
    torch.randn(64, 48, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.05, 3, 64)[:, None]
    + 0.3
)
W = 1 + 0.3 * torch.randn(48, generator=torch.Generator().manual_seed(1))


def rms(x: Tensor, w: Tensor, *, eps: float = 1e-5) -> Tensor:
    return w * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def outside(x: Tensor, w: Tensor) -> Tensor:
    return w * x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-3)


def unbiased(x: Tensor, w: Tensor) -> Tensor:
    return w * (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5)


def layer(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, (48,), w)


def one_plus(x: Tensor, w: Tensor) -> Tensor:
    return rms(x, 1 + w)


def kinds(target: Norm, reference: Norm) -> tuple[Kind, ...]:
    around = Surroundings(
        type="Norm", module="norm", inputs=(pair("input.0", X, X),), parameters=(pair("weight", W, W),)
    )
    return name_kinds(case(target(X, W), reference(X, W), surroundings=around))


@pytest.mark.parametrize(
    ("target", "reference", "forms"),
    [
        (outside, rms, (NormForm.EPS_OUTSIDE, NormForm.EPS_INSIDE)),
        (rms, layer, (NormForm.NOT_CENTRED, NormForm.CENTRED)),
        (unbiased, layer, (NormForm.UNBIASED, NormForm.BIASED)),
        (one_plus, rms, (NormForm.ONE_PLUS_WEIGHT, NormForm.WEIGHT)),
        (rms, one_plus, (NormForm.WEIGHT, NormForm.ONE_PLUS_WEIGHT)),
    ],
)
def test_the_form_that_differs_is_named(
    target: Norm, reference: Norm, forms: tuple[NormForm, NormForm]
) -> None:
    best = kinds(target, reference)[0].sentence
    assert best.code is KindReason.NORM_FORM
    assert best.parts == tuple(map(reason, forms))


def test_another_eps_is_no_other_form() -> None:
    best = kinds(lambda x, w: rms(x, w, eps=1e-3), rms)[0].sentence
    assert best.code is KindReason.NORM_EPS
    assert best.number("target") == pytest.approx(1e-3, rel=0.01)


def test_no_eps_at_all_is_zero_and_not_what_the_fit_leaves() -> None:
    for target, reference in ((0.0, 1e-5), (1e-5, 0.0), (0.0, 1e-4)):
        best = kinds(lambda x, w, e=target: rms(x, w, eps=e), lambda x, w, e=reference: rms(x, w, eps=e))[0]
        assert best.sentence.code is KindReason.NORM_EPS
        for side, eps in (("target", target), ("reference", reference)):
            assert best.sentence.number(side) == (pytest.approx(eps, rel=0.02) if eps else 0.0)


@pytest.mark.parametrize("norm", [rms, layer, outside, unbiased, one_plus])
def test_rounding_alone_is_no_form(norm: Norm) -> None:
    found = kinds(lambda x, w: norm(x.double(), w.double()).float(), norm)
    assert all(one.sentence.code not in (KindReason.NORM_FORM, KindReason.NORM_EPS) for one in found)


COARSE = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def coarse_kinds(
    divisors: tuple[Norm, Norm], dtype: torch.dtype, seed: int, sizes: Tensor
) -> tuple[Kind, ...]:
    """Kinds of two norms that divide by a function of the mean square in float32 and round once."""
    random = torch.Generator().manual_seed(seed)
    x = (torch.randn(96, 160, generator=random) * sizes[:, None]).to(dtype)
    w = (1 + 0.3 * torch.randn(160, generator=random)).to(dtype) if seed % 2 else torch.ones(160, dtype=dtype)
    around = Surroundings(
        type="Norm", module="norm", inputs=(pair("input.0", x, x),), parameters=(pair("weight", w, w),)
    )
    square = x.float().square().mean(-1, keepdim=True)
    made = [(x.float() / divisor(square, w) * w.float()).to(dtype) for divisor in divisors]
    return name_kinds(case(*made, surroundings=around))


def inside(eps: float) -> Norm:
    return lambda square, w: (square + eps).sqrt()


@pytest.mark.parametrize("dtype", COARSE, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_eps_of_a_coarse_norm_is_that_which_gives_its_bits(dtype: torch.dtype, seed: int) -> None:
    """Where rows are of size 1 a factor near 1 rounds them back to x: a fit is off by a rounding or two."""
    sizes = torch.ones(96)
    found = coarse_kinds((inside(1e-2), inside(1e-5)), dtype, seed, sizes)[0].sentence
    assert found.code is KindReason.NORM_EPS
    assert found.number("target") == pytest.approx(1e-2, rel=0.02)
    assert found.number("reference") == pytest.approx(1e-5, abs=1e-3 * COARSE[dtype] / 2.0**-8)


@pytest.mark.parametrize("dtype", COARSE, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_constant_outside_the_root_is_no_eps_inside(dtype: torch.dtype, seed: int) -> None:
    """Of rows of one size it is a factor; of several sizes a form of its own."""
    of_root: Norm = lambda square, w: square.sqrt() + 1e-3  # noqa: E731
    alike = coarse_kinds((of_root, inside(1e-5)), dtype, seed, torch.ones(96))
    assert all(kind.sentence.code is not KindReason.NORM_EPS for kind in alike)
    found = coarse_kinds((of_root, inside(1e-5)), dtype, seed, torch.linspace(0.05, 3, 96))[0].sentence
    assert found.code is KindReason.NORM_FORM


def rounded_inside(x: Tensor, w: Tensor) -> Tensor:
    """A norm in bfloat16 whose output is kept in float32: its rows are divided by rounded numbers."""
    return w * rms(x.bfloat16(), torch.ones(48, dtype=torch.bfloat16)).float()


def test_a_norm_computed_in_a_coarser_dtype_has_no_other_eps() -> None:
    for seed in range(8):
        x = torch.randn(64, 48, generator=torch.Generator().manual_seed(seed))
        x *= 0.02 * torch.rsqrt(x.square().mean(-1, keepdim=True))  # rows of one size are rounded alike
        around = Surroundings(
            type="Norm", module="norm", inputs=(pair("input.0", x, x),), parameters=(pair("weight", W, W),)
        )
        found = name_kinds(case(rounded_inside(x, W), rms(x, W), surroundings=around))
        assert KindReason.NORM_EPS not in [kind.sentence.code for kind in found]


def test_a_norm_computed_in_a_coarser_dtype_shows_an_eps_beyond_its_rounding() -> None:
    coarse = name_of(lambda x, w: w * rms(x.bfloat16(), torch.ones(48).bfloat16(), eps=0.3).float())
    assert KindReason.NORM_EPS in coarse


def name_of(target: Norm) -> list[object]:
    return [kind.sentence.code for kind in kinds(target, rms)]
