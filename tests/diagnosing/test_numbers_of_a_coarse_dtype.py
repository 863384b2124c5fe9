"""Numbers of 16 bits are few: that one is among a tensor's is no proof of where it was taken from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.diagnosing.cases import case, pair
from trueup.diagnosing.evidence import Surroundings
from trueup.diagnosing.kinds import name_kinds
from trueup.types.codes.kinds import KindReason
from trueup.types.reason import Reason

pytestmark = pytest.mark.torch

ROWS, WIDTH, EXPERTS = 96, 64, 8
RANDOM = torch.Generator().manual_seed(4)
FUSED = torch.randn(ROWS, 3 * WIDTH, generator=RANDOM)
"""of queries, keys and values"""
QUERIES, KEYS = FUSED[:, :WIDTH], FUSED[:, WIDTH : 2 * WIDTH]
LOGITS = torch.randn(ROWS, EXPERTS, generator=RANDOM) - 1.5


def first_reason(target: Tensor, reference: Tensor, near: Tensor, dtype: torch.dtype) -> Reason | None:
    near = near.to(dtype)
    around = Surroundings(module="m", name="m", type="Mixture", nearby=(pair("qkv, output.0", near, near),))
    found = name_kinds(case(target.to(dtype), reference.to(dtype), module="m", surroundings=around))
    return found[0].sentence if found else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_another_part_of_a_fused_tensor(dtype: torch.dtype) -> None:
    found = first_reason(KEYS, QUERIES, FUSED, dtype)
    assert found is not None
    assert found.code is KindReason.OTHER_ELEMENTS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_factor_and_other_vectors_are_no_places(dtype: torch.dtype) -> None:
    scaled = first_reason(1.3 * QUERIES, QUERIES, FUSED, dtype)
    assert scaled is not None
    assert scaled.code is KindReason.SCALED
    others = first_reason(torch.randn(ROWS, WIDTH, generator=RANDOM), QUERIES, FUSED, dtype)
    assert others is None or others.code is not KindReason.OTHER_ELEMENTS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("target_is_plain", [True, False])
def test_weights_of_experts_that_are_not_normalised(
    dtype: torch.dtype, scores: str, target_is_plain: bool
) -> None:
    """Each token's factor is the sum of its largest scores; no sum of its numbers is 1 by chance."""
    made = getattr(LOGITS.to(dtype).float(), scores)(*(() if scores == "sigmoid" else (-1,)))
    sums = made.topk(2, -1).values.sum(-1, keepdim=True)
    hidden = 0.3 * torch.randn(ROWS, WIDTH, generator=RANDOM)
    sides = (hidden * sums, hidden) if target_is_plain else (hidden, hidden * sums)
    found = first_reason(*sides, LOGITS, dtype)
    assert found is not None
    assert found.code is KindReason.ROUTER_NORMALISED
    assert found.place("target" if target_is_plain else "reference") == "none"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_factors_of_tokens_are_no_router(dtype: torch.dtype) -> None:
    factors = 0.5 + 2 * torch.rand(ROWS, 1, generator=RANDOM)
    hidden = 0.3 * torch.randn(ROWS, WIDTH, generator=RANDOM)
    found = first_reason(hidden * factors, hidden, LOGITS, dtype)
    assert found is not None
    assert found.code is KindReason.SCALED_PER_TOKEN
