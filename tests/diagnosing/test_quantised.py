"""A linear layer multiplied again with its operands in 8 bits: the recipe is named, rounding is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.diagnosing.cases import case, pair
from trueup.diagnosing.evidence import Surroundings
from trueup.diagnosing.kinds import name_kinds
from trueup.diagnosing.kinds.quantised import (
    E4M3,
    E5M2,
    INT8,
    Operand,
    OperandRecipe,
    operand_rounded,
    recipes_of,
)
from trueup.types.codes.kinds import KindReason
from trueup.types.finding import KindCode
from trueup.types.reason import Reason

pytestmark = pytest.mark.torch

RANDOM = torch.Generator().manual_seed(6)
X = torch.randn(4, 48, 192, generator=RANDOM).bfloat16()
X[..., 7] *= 12  # a feature far out, as activations have them
W = (0.05 * torch.randn(256, 192, generator=RANDOM)).bfloat16()


def rounded(values: Tensor, dtype: torch.dtype, dim: int | None, times: float = 1.0) -> Tensor:
    top = torch.finfo(dtype).max
    largest = values.float().abs().amax() if dim is None else values.float().abs().amax(dim, keepdim=True)
    scale = times * top / largest
    return (values.float() * scale).clamp(-top, top).to(dtype).float() / scale


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x.float() @ w.float().T).bfloat16()


def in_float8(
    x_dtype: torch.dtype, w_dtype: torch.dtype, dim: int | None = None, times: float = 1.0
) -> Tensor:
    return product(rounded(X, x_dtype, dim, times), rounded(W, w_dtype, dim, times))


PLAIN, HALF = torch.float8_e4m3fn, torch.float8_e5m2
MADE = {
    OperandRecipe(): product(X, W),
    OperandRecipe(given=E4M3, weight=E4M3): in_float8(PLAIN, PLAIN),
    OperandRecipe(given=E5M2, weight=E4M3): in_float8(HALF, PLAIN),
    OperandRecipe(given=E5M2, weight=E5M2): in_float8(HALF, HALF),
    OperandRecipe(given=E4M3, weight=E4M3, scales="row"): in_float8(PLAIN, PLAIN, -1),
    OperandRecipe(given=E4M3, weight=E4M3, cut=2.0): in_float8(PLAIN, PLAIN, times=2.0),
    OperandRecipe(weight=E4M3): product(X, rounded(W, PLAIN, None)),
}


def as_numbers(values: Tensor) -> np.ndarray:
    return values.double().reshape(-1, values.shape[-1]).numpy()


def operand(values: Tensor, rows: int | None = None) -> Operand:
    return Operand(values=as_numbers(values)[:rows], largest=float(values.abs().max()))


@pytest.mark.parametrize("recipe", MADE, ids=str)
def test_the_recipe_that_gives_a_product(recipe: OperandRecipe) -> None:
    made = as_numbers(MADE[recipe])[:64, :128]
    assert recipes_of(operand(X, 64), operand(W, 128), [made], "bfloat16") == [recipe]


@pytest.mark.parametrize("name", [E4M3, E5M2])
def test_numbers_of_a_format_are_those_of_torch(name: str) -> None:
    made = operand_rounded(operand(X), name, "tensor")
    expected = as_numbers(rounded(X, getattr(torch, name), None))
    assert np.allclose(made, expected, rtol=1e-6, atol=0)


def test_blocks_and_integers() -> None:
    for scales, block in (("block", (128, 128)), ("group", (1, 32))):
        made = operand_rounded(operand(W), INT8, scales, block)
        part = operand_rounded(operand(W[: block[0], : block[1]]), INT8, "tensor")
        assert np.array_equal(made[: block[0], : block[1]], part)


def first_reason(target: Tensor, reference: Tensor) -> Reason | None:
    around = Surroundings(
        module="up",
        name="up",
        type="Linear",
        inputs=(pair("input.0", X, X),),
        parameters=(pair("weight", W, W),),
    )
    found = name_kinds(case(target, reference, slot="output.0", module="up", surroundings=around))
    recipes = [kind for kind in found if kind.sentence.code is KindReason.OPERANDS_ROUNDED]
    assert all(kind.name is KindCode.DTYPE_OR_ROUNDING for kind in recipes)
    return recipes[0].sentence if recipes else None


@pytest.mark.parametrize("recipe", list(MADE)[1:], ids=str)
def test_the_two_recipes_are_named(recipe: OperandRecipe) -> None:
    found = first_reason(MADE[recipe], MADE[OperandRecipe()])
    assert found is not None
    assert (found.place("target_given"), found.place("target_weight")) == (recipe.given, recipe.weight)
    assert (found.place("reference_given"), found.number("target_cut")) == ("", recipe.cut)


def test_other_differences_are_no_recipe() -> None:
    """Another order of additions, float8 emulated in float32, a factor, another weight, noise."""
    plain, coarse = MADE[OperandRecipe()], MADE[OperandRecipe(given=E4M3, weight=E4M3)]
    halves = (
        X[..., :96].float() @ W[:, :96].float().T + X[..., 96:].float() @ W[:, 96:].float().T
    ).bfloat16()
    noise = torch.randn(plain.shape, generator=RANDOM)
    for target, reference in (
        (halves, plain),
        (coarse, coarse.float().bfloat16()),
        (1.1 * plain, plain),
        (product(X, 1.03 * W), plain),
        ((plain * (1 + 0.03 * noise)).bfloat16(), plain),
        (1.1 * coarse, coarse),
    ):
        assert first_reason(target.bfloat16(), reference) is None
