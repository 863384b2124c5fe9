"""Attention with a cap of the scores, ALiBi, a part of a head rotated, norms of queries and keys, pads before
the sequence: what the reference does is found, and the one thing that differs is named."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.diagnosing.cases import case, normal, pair
from trueup.diagnosing.evidence import Surroundings
from trueup.diagnosing.kinds import name_kinds
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import Kind

pytestmark = pytest.mark.torch
ROWS, HEADS, GROUPS, SIZE, TOKENS = 2, 4, 2, 16, 20
Q, K, V = (
    normal(ROWS, TOKENS, width, seed=seed)
    for width, seed in ((HEADS * SIZE, 61), (GROUPS * SIZE, 62), (GROUPS * SIZE, 63))
)
PADS = torch.arange(TOKENS)[None] >= torch.tensor([[6], [0]])
"""(rows, keys) that are no pads"""
SEEN = torch.ones(TOKENS, TOKENS).tril().bool() & PADS[:, None, None, :]


def turned(x: Tensor, *, part: int, backward: bool, last: bool, divided: int | None) -> Tensor:
    if last:
        rest, x = x[..., :-part], x[..., -part:]
    else:
        x, rest = x[..., :part], x[..., part:]
    exponents = torch.arange(0, part, 2).double() / (divided or part)
    angle = torch.outer(torch.arange(TOKENS).double(), 1e4**-exponents) * (-1 if backward else 1)
    first, second = x.chunk(2, -1)
    out = torch.cat(
        (first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1
    )
    return torch.cat((rest, out) if last else (out, rest), -1)


def attention(
    *,
    cap: float | None = None,
    slopes: float | None = None,
    part: int | None = SIZE,
    backward: bool = False,
    last: bool = False,
    divided: int | None = None,
    merged: bool = True,
    pads: bool = False,
    clamp: float = math.inf,
    scale: float = SIZE**-0.5,
    low: float = -1e9,
    qk: tuple[Tensor, Tensor] = (Q, K),
    alternating: bool = False,
    dim: int = -1,
    late: bool = False,
) -> Tensor:
    """(rows, tokens, width)."""
    q, k, v = (x.double().unflatten(-1, (-1, SIZE)).transpose(1, 2) for x in (*qk, V))
    if part is not None:
        q, k = (turned(x, part=part, backward=backward, last=last, divided=divided) for x in (q, k))
    k, v = (x.repeat(1, 2, 1, 1) if alternating else x.repeat_interleave(2, 1) for x in (k, v))
    scores = (q @ k.transpose(-2, -1) * scale).clamp(-clamp, clamp)
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    if slopes is not None:
        at = torch.arange(TOKENS).double()
        scores = scores + 2.0 ** (-slopes * torch.arange(1, HEADS + 1).double())[:, None, None] * (
            at[None] - at[:, None]
        )
    causal = torch.ones(TOKENS, TOKENS).tril().bool()
    seen = SEEN if pads else causal
    weights = scores.softmax(dim) * seen if late else scores.masked_fill(~seen, low).softmax(dim).nan_to_num()
    out = weights @ v
    return (out.transpose(1, 2) if merged else out).reshape(ROWS, TOKENS, -1).float()


def kinds(
    target: Tensor, reference: Tensor, *, mask: Tensor | None = None, norms: bool = False
) -> tuple[Kind, ...]:
    """What is said of an attention that was computed again."""
    near = [pair("output.0", None, x) for x in (Q, K, V)]
    if norms:
        near = [pair("output.0", None, 3 * x) for x in (Q, K)] + [pair("output.0", None, V)]
        near += [pair("output.0", None, x.unflatten(-1, (-1, SIZE))) for x in (Q, K)]
    near += [] if mask is None else [pair("input.1", None, mask)]
    around = Surroundings(
        module="layers.0.attn", name="layers.0.attn.proj", type="Attention", nearby=tuple(near)
    )
    return name_kinds(case(target, reference, slot="input.0", module="layers.0.attn", surroundings=around))


def codes(target: Tensor, reference: Tensor, **given: Any) -> set[Any]:
    return {kind.sentence.code for kind in kinds(target, reference, **given)} & SAID


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], KindReason]] = {
    "no cap": ({}, {"cap": 1.5}, KindReason.CAP_OF_ONE_SIDE),
    "a cap": ({"cap": 1.5}, {}, KindReason.CAP_OF_ONE_SIDE),
    "another cap": ({"cap": 3.0}, {"cap": 1.5}, KindReason.SCORES_CAPPED),
    "both backward": ({"backward": True}, {}, KindReason.BOTH_ROTATED_BACKWARD),
    "not merged": ({"merged": False}, {}, KindReason.HEADS_NOT_MERGED),
    "over queries": ({"dim": -2}, {}, KindReason.SOFTMAX_OVER_QUERIES),
    "masked late": ({"late": True}, {}, KindReason.MASKED_AFTER_SOFTMAX),
    "half of a head": ({"part": 8}, {}, KindReason.ROTATED_PART),
    "the whole head": ({}, {"part": 8}, KindReason.ROTATED_PART),
    "the last half": ({"part": 8, "last": True}, {"part": 8}, KindReason.ROTATED_LAST),
    "divided by the head": ({"part": 8, "divided": 16}, {"part": 8}, KindReason.FREQUENCIES_OF_HEAD),
    "slopes of eight heads": (
        {"part": None, "slopes": 1.0},
        {"part": None, "slopes": 2.0},
        KindReason.ALIBI_SLOPES,
    ),
    "no ALiBi": ({"part": None}, {"part": None, "slopes": 2.0}, KindReason.ALIBI_OF_ONE_SIDE),
    "scale beside a cap": ({"cap": 1.5, "scale": 0.2}, {"cap": 1.5}, KindReason.SCORES_SCALED),
    "heads beside ALiBi": (
        {"part": None, "slopes": 2.0, "alternating": True},
        {"part": None, "slopes": 2.0},
        KindReason.KEY_HEADS_ALTERNATE,
    ),
}
SAID = {code for _, _, code in CHANGES.values()} | {
    KindReason.NO_ROTARY,
    KindReason.ATTENTION_THETA,
    KindReason.ROTARY_PAIRING,
    KindReason.KEYS_ROTATED_BACKWARD,
    KindReason.MASK_UNUSED,
    KindReason.NO_MASK,
    KindReason.SEES_SUCCESSOR,
}


@pytest.mark.parametrize(("target", "reference", "code"), CHANGES.values(), ids=CHANGES)
def test_the_one_change_is_named(target: dict[str, Any], reference: dict[str, Any], code: KindReason) -> None:
    assert codes(attention(**target), attention(**reference)) == {code}


@pytest.mark.parametrize(
    ("target", "cause"),
    [({"dim": -2}, CauseCode.OTHER_DIM), ({"late": True}, CauseCode.MASK_MULTIPLIED)],
    ids=["over queries", "masked late"],
)
def test_its_cause_is_said(target: dict[str, Any], cause: CauseCode) -> None:
    (one,) = [kind for kind in kinds(attention(**target), attention()) if kind.sentence.code in SAID]
    assert [code.code for code in one.causes] == [cause]


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ({"pads": True, "alternating": True}, KindReason.KEY_HEADS_ALTERNATE),
        ({"pads": True, "scale": 0.2}, KindReason.SCORES_SCALED),
        ({"pads": False}, KindReason.MASK_UNUSED),
        ({"pads": True, "merged": False}, KindReason.HEADS_NOT_MERGED),
        ({"pads": True, "low": -30.0}, None),
    ],
    ids=["heads", "scale", "pads seen", "not merged", "what pads see is no difference"],
)
@pytest.mark.parametrize("hides", [False, True], ids=["true is seen", "true is hidden"])
def test_pads_before_a_sequence_see_nothing(
    target: dict[str, Any], code: KindReason | None, hides: bool
) -> None:
    mask = ~SEEN if hides else SEEN
    found = codes(attention(**target), attention(pads=True), mask=mask)
    assert found == (set() if code is None else {code})


def test_norms_of_queries_and_keys_give_them() -> None:
    assert codes(attention(backward=True), attention(), norms=True) == {KindReason.BOTH_ROTATED_BACKWARD}


@pytest.mark.parametrize("clamp", [0.5, 1.0])
def test_scores_that_are_clamped_are_not_capped(clamp: float) -> None:
    assert not codes(attention(clamp=clamp), attention())


@pytest.mark.parametrize("reference", [{}, {"part": 8}])
def test_another_value_is_no_other_attention(reference: dict[str, Any]) -> None:
    """Noise on what the reference gives, and numbers of their own, have none of these causes."""
    made = attention(**reference)
    assert not codes(made + 0.01 * normal(*made.shape, seed=71), made)
    assert not codes(made * (1 + 1e-7 * normal(*made.shape, seed=73)), made)


def test_other_numbers_are_no_attention_at_all() -> None:
    assert not codes(normal(*attention().shape, seed=72), attention(cap=1.5))
    assert not codes(attention(), normal(*attention().shape, seed=72))
