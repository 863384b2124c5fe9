"""Factors of rows, tokens and features: told where nothing else differs, and only there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.diagnosing.cases import case, normal, pair, tells
from trueup.diagnosing.evidence import Surroundings
from trueup.diagnosing.kinds import name_kinds
from trueup.types.codes.kinds import KindReason as Code

pytestmark = pytest.mark.torch
ROWS, TOKENS, WIDTH = 4, 12, 16
X = normal(ROWS, TOKENS, WIDTH, seed=51)
WEIGHT = 1 + 0.3 * normal(WIDTH, seed=52)
PER_ROW = torch.tensor([0.5, 1.0, 3.0, 1.7])[:, None, None]
PER_TOKEN = 1 + torch.rand(ROWS, TOKENS, 1, generator=torch.Generator().manual_seed(53))
SHARES = X.softmax(-1)


def evidence_of(target: torch.Tensor, reference: torch.Tensor) -> Any:
    around = Surroundings(
        module="scale", name="scale", type="Scale", parameters=(pair("weight", WEIGHT, WEIGHT),)
    )
    return case(target, reference, slot="output.0", module="scale", surroundings=around)


CASES = {
    "rows": (X * PER_ROW, X, "wrong_scale", Code.SCALED_PER_ROW, {"low": 0.5, "high": 3.0, "num": 4}),
    "tokens": (X * PER_TOKEN, X, "wrong_scale", Code.SCALED_PER_TOKEN, {"num": 48}),
    "not normalised": (
        SHARES * PER_TOKEN,
        SHARES,
        "missing_or_extra_term",
        Code.SUMS_TO_ONE,
        {"side": "reference"},
    ),
    "normalised": (
        X / X.norm(dim=-1, keepdim=True),
        X,
        "missing_or_extra_term",
        Code.LENGTH_OF_ONE,
        {"side": "target"},
    ),
    "weight left out": (
        X,
        X * WEIGHT,
        "missing_or_extra_term",
        Code.WEIGHT_OF_ONE_SIDE,
        {"side": "reference", "offset": 0.0},
    ),
    "weight twice": (
        X * WEIGHT * WEIGHT,
        X * WEIGHT,
        "missing_or_extra_term",
        Code.WEIGHT_OF_ONE_SIDE,
        {"side": "target", "offset": 0.0},
    ),
    "another constant": (
        X * (2 + WEIGHT),
        X * (1 + WEIGHT),
        "constant_argument",
        Code.WEIGHT_OFFSET,
        {"target": 2.0, "reference": 1.0},
    ),
}
ALL = tuple({code for *_, code, _ in CASES.values()})


@pytest.mark.parametrize("name", CASES)
def test_the_factors_of_an_index(name: str) -> None:
    target, reference, kind, code, facts = CASES[name]
    first = name_kinds(evidence_of(target, reference))[0]
    assert first.name == kind
    assert tells(first.sentence, code, **facts)


@pytest.mark.parametrize(
    "target",
    [
        X * 1.5,
        X * PER_ROW + 0.01 * normal(ROWS, TOKENS, WIDTH, seed=54),
        X * PER_TOKEN + 0.01 * normal(ROWS, TOKENS, WIDTH, seed=55),
        X * (1 + 1e-7 * PER_ROW),
        X * (1 + 0.3 * normal(WIDTH, seed=56)),
        normal(ROWS, TOKENS, WIDTH, seed=57),
    ],
    ids=[
        "one factor",
        "rows and a rest",
        "tokens and a rest",
        "rounding",
        "another weight",
        "another tensor",
    ],
)
def test_anything_else_is_no_factor_of_an_index(target: torch.Tensor) -> None:
    kinds = name_kinds(evidence_of(target, X))
    assert not any(tells(kind.sentence, *ALL) for kind in kinds)
