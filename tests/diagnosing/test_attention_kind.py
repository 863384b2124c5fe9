"""An attention that differs in one thing is told from its queries, keys, values and what it gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.diagnosing.cases import case, normal, pair, tells
from trueup.diagnosing.evidence import Surroundings
from trueup.diagnosing.kinds import name_kinds
from trueup.diagnosing.kinds.attention import what_is_hidden
from trueup.types.codes.kinds import KindReason

pytestmark = pytest.mark.torch
HEADS, GROUPS, SIZE, TOKENS = 4, 2, 16, 24
Q, K, V = (
    normal(2, TOKENS, width, seed=seed)
    for width, seed in ((HEADS * SIZE, 31), (GROUPS * SIZE, 32), (GROUPS * SIZE, 33))
)


def turned(x: Tensor, theta: float, *, pairs: bool = False, backward: bool = False) -> Tensor:
    """Rotary embedding of (rows, heads, tokens, size)."""
    angle = torch.outer(torch.arange(TOKENS).double(), theta ** -(torch.arange(0, SIZE, 2).double() / SIZE))
    turn = torch.polar(torch.ones_like(angle), -angle if backward else angle)
    if pairs:
        return (
            torch.view_as_real(torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2)) * turn)
            .flatten(-2)
            .float()
        )
    first, second = x.double().chunk(2, dim=-1)
    both = torch.complex(first, second) * turn
    return torch.cat((both.real, both.imag), dim=-1).float()


def attention(
    *,
    scale: float = SIZE**-0.5,
    last: int = 0,
    theta: float | None = 1e4,
    key_theta: float | None = None,
    pairs: bool = False,
    alternating: bool = False,
    dtype: torch.dtype | None = None,
    by_group: bool = False,
    by_kind: bool = False,
    backward: bool = False,
    limit: float = math.inf,
    exchanged: bool = False,
    inclusive: bool = False,
    documents: Tensor | None = None,
) -> Tensor:
    """(rows, tokens, width) as a program computes it."""
    q, k, v = (Q, V, K) if exchanged else (Q, K, V)
    theta = theta ** (SIZE / (SIZE - 2)) if theta is not None and inclusive else theta
    if by_group:
        parts = [x.unflatten(-1, (GROUPS, -1)) for x in (q, k, v)]
        q, k, v = torch.cat(parts, -1).flatten(-2).split([HEADS * SIZE, GROUPS * SIZE, GROUPS * SIZE], -1)
    if by_kind:
        fused = torch.cat((q, k, v), -1).unflatten(-1, (GROUPS, -1))
        q, k, v = (x.flatten(-2) for x in fused.split([HEADS * SIZE // GROUPS, SIZE, SIZE], -1))
    q, k, v = (x.unflatten(-1, (-1, SIZE)).transpose(1, 2) for x in (q, k, v))
    if theta is not None:
        q = turned(q, theta, pairs=pairs)
        k = turned(k, key_theta or theta, pairs=pairs, backward=backward)
    k, v = (x.repeat(1, 2, 1, 1) if alternating else x.repeat_interleave(2, 1) for x in (k, v))
    scores = (q @ k.transpose(-2, -1) * scale).clamp(-limit, limit)
    scores = scores.masked_fill(~torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(last), -math.inf)
    if documents is not None:
        scores = scores.masked_fill(~documents, -math.inf)
    weights = F.softmax(scores if dtype is None else scores.to(dtype), dim=-1).float()
    return (weights @ v).transpose(1, 2).flatten(-2)


def evidence_of(
    target: Tensor, reference: Tensor, *, fused: bool | str = False, mask: Tensor | None = None
) -> Any:
    near = [("output.0", torch.cat((Q, K, V), -1))] if fused else [("output.0", x) for x in (Q, K, V)]
    if fused == "keys and values":
        near = [("output.0", Q), ("output.0", torch.cat((K, V), -1))]
    near += [] if mask is None else [("input.1", mask)]
    around = Surroundings(
        module="layers.0.attn",
        name="layers.0.attn.proj",
        type="Attention",
        nearby=tuple(pair(slot, None, value) for slot, value in near),
    )
    return case(target, reference, slot="input.0", module="layers.0.attn", surroundings=around)


CHANGES = {
    "scale": ({"scale": 0.3}, "constant_argument", KindReason.SCORES_SCALED, (0.3, 0.25)),
    "a hundredth more": ({"scale": 0.2525}, "constant_argument", KindReason.SCORES_SCALED, (0.2525, 0.25)),
    "theta": ({"theta": 5e5}, "constant_argument", KindReason.ATTENTION_THETA, (5e5, 1e4)),
    "an odd theta": ({"theta": 2.5e4}, "constant_argument", KindReason.ATTENTION_THETA, (2.5e4, 1e4)),
    "leak": ({"last": 1}, "wrong_mask", KindReason.SEES_SUCCESSOR, None),
    "no mask": ({"last": TOKENS}, "wrong_mask", KindReason.NO_MASK, None),
    "keys": ({"backward": True}, "wrong_sign", KindReason.KEYS_ROTATED_BACKWARD, None),
    "groups": ({"by_kind": True}, "transposed_or_permuted", KindReason.FUSED_ROWS_BY_KIND, None),
    "heads": ({"alternating": True}, "transposed_or_permuted", KindReason.KEY_HEADS_ALTERNATE, None),
    "pairs": ({"pairs": True}, "transposed_or_permuted", KindReason.ROTARY_PAIRING, ("pairs", "halves")),
    "rows": ({"by_group": True}, "transposed_or_permuted", KindReason.FUSED_ROWS_BY_GROUP, None),
    "left out": ({"theta": None}, "missing_or_extra_term", KindReason.NO_ROTARY, None),
    "exchanged": ({"exchanged": True}, "transposed_or_permuted", KindReason.KEYS_FOR_VALUES, None),
    "both ends": ({"inclusive": True}, "constant_argument", KindReason.FREQUENCIES_INCLUSIVE, None),
    "softmax": ({"dtype": torch.bfloat16}, "dtype_or_rounding", KindReason.SOFTMAX_ROUNDED, None),
}
ATTENDED = {code for _, _, code, _ in CHANGES.values()} | {
    KindReason.CAUSAL_MASK_ADDED,
    KindReason.MASK_BEGINS,
}
"""what is said of an attention that was computed again"""


@pytest.mark.parametrize("fused", [False, True, "keys and values"])
@pytest.mark.parametrize(("change", "kind", "code", "values"), CHANGES.values(), ids=CHANGES)
def test_the_change_is_named(
    change: dict[str, Any], kind: str, code: KindReason, values: tuple[Any, Any] | None, fused: bool | str
) -> None:
    found = name_kinds(evidence_of(attention(**change), attention(), fused=fused))
    assert found[0].name == kind, found
    assert {kind.sentence.code for kind in found} & ATTENDED == {code}  # and none of the others
    if values is not None:
        facts = found[0].sentence.facts
        assert (facts["target"], facts["reference"]) == (
            values if isinstance(values[0], str) else pytest.approx(values, rel=1e-3)
        )


def test_the_reference_may_be_the_odd_one() -> None:
    found = name_kinds(evidence_of(attention(), attention(pairs=True)))
    assert tells(found[0].sentence, KindReason.ROTARY_PAIRING, target="halves", reference="pairs")


@pytest.mark.parametrize(("last", "added"), [(0, True), (1, False), (TOKENS, False)])
def test_a_causal_mask_that_the_reference_has_not(last: int, added: bool) -> None:
    found = name_kinds(evidence_of(attention(last=last), attention(last=TOKENS)))
    assert any(kind.sentence.code is KindReason.CAUSAL_MASK_ADDED for kind in found) is added


@pytest.mark.parametrize("theta", [700.0, 33_000.0, 2.7e6])
def test_any_theta_of_the_reference_is_solved_for(theta: float) -> None:
    found = name_kinds(evidence_of(attention(theta=theta, last=1), attention(theta=theta)))
    assert found[0].sentence.code is KindReason.SEES_SUCCESSOR


def test_other_numbers_are_no_attention() -> None:
    other = normal(2, TOKENS, HEADS * SIZE, seed=40)
    found = name_kinds(evidence_of(other, attention()))
    assert not any(kind.sentence.code in ATTENDED for kind in found)
    found = name_kinds(evidence_of(attention(last=1), other))
    assert not any(kind.sentence.code in ATTENDED for kind in found)


def test_rounding_alone_is_not_given_a_cause() -> None:
    reference = attention()
    noise = 1e-7 * normal(*reference.shape, seed=41) * reference.abs()
    found = name_kinds(evidence_of(reference + noise, reference))
    assert not any(kind.sentence.code in ATTENDED for kind in found)


@pytest.mark.parametrize("limit", [0.3, 0.6, 1.0])
def test_scores_that_are_limited_have_no_other_scale(limit: float) -> None:
    found = name_kinds(evidence_of(attention(limit=limit), attention()))
    assert not any(kind.sentence.code is KindReason.SCORES_SCALED for kind in found)


def test_of_attention_weights_that_differ_it_is_told_by_what_is_made_of_them() -> None:
    weights = [normal(2, HEADS, TOKENS, TOKENS, seed=seed).softmax(-1) for seed in (51, 52)]
    near = [pair("output.0", None, x) for x in (Q, K, V)]
    near.append(pair("input.0", attention(alternating=True), attention()))
    around = Surroundings(
        module="layers.0.attn", name="layers.0.attn.drop", type="Attention", nearby=tuple(near)
    )
    found = name_kinds(case(*weights, slot="input.0", module="layers.0.attn", surroundings=around))
    assert found[0].sentence.code is KindReason.KEY_HEADS_ALTERNATE


# -- what stands around the attention ------------------------------------------

SMALL = 12
"""size of a head that no program is expected to have"""
REAL = 9
"""tokens of the first row that are not padding"""
ANGLES = torch.outer(torch.arange(TOKENS).double() + 3, 7.0 ** -torch.arange(SMALL // 2).double()) / 5
"""of no theta: a scaled embedding's"""


def padded(pairing: str = "halves", *, laid: str = "halves", alternating: bool = False) -> tuple[Any, ...]:
    """Queries, keys, values, cosines, sines, mask and what goes into the projection."""
    q, k, v = (normal(2, TOKENS, heads * SMALL, seed=seed) for heads, seed in ((4, 4), (2, 2), (2, 3)))
    tables = [
        torch.cat((one, one), -1) if laid == "halves" else one.repeat_interleave(2, -1)
        for one in (ANGLES.cos(), ANGLES.sin())
    ]
    hidden = ~torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril().expand(2, 1, -1, -1).clone()
    hidden[0, :, :, REAL:] = True
    heads = [x.unflatten(-1, (-1, SMALL)).transpose(1, 2).double() for x in (q, k, v)]
    for at in (0, 1):
        x = heads[at]
        if pairing == "halves":
            other = torch.cat((-x[..., SMALL // 2 :], x[..., : SMALL // 2]), -1)
        else:
            other = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        heads[at] = x * tables[0] + other * tables[1]
    a, b, c = heads
    b, c = (x.repeat(1, 2, 1, 1) if alternating else x.repeat_interleave(2, 1) for x in (b, c))
    scores = (a @ b.transpose(-2, -1) * SMALL**-0.5).masked_fill(hidden, -math.inf)
    out = (scores.softmax(-1) @ c).transpose(1, 2).flatten(-2).float()
    mask = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
    return q, k, v, tables[0][None].float(), tables[1][None].float(), mask, out


def around(reference: tuple[Any, ...], target: Tensor) -> Any:
    q, k, v, cos, sin, mask, out = reference
    slots = ("output.0", "output.0", "output.0", "input.turn.0", "input.turn.1", "input.mask")
    held = zip(slots, (q, k, v, cos, sin, mask), strict=True)
    near = tuple(pair(slot, None, value) for slot, value in held)
    known = Surroundings(module="layers.0.attn", name="layers.0.attn.proj", type="Attention", nearby=near)
    return case(target, out, slot="input.0", module="layers.0.attn", surroundings=known)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"alternating": True}, KindReason.KEY_HEADS_ALTERNATE),
        ({"pairing": "pairs", "laid": "pairs"}, KindReason.ROTARY_PAIRING),
        ({"pairing": "pairs", "laid": "halves"}, KindReason.ROTARY_PAIRING),
    ],
    ids=["heads taken in turn", "pairs", "pairs, with the tables of halves"],
)
def test_padding_and_a_scaled_embedding_are_read_from_what_the_module_is_given(
    change: dict[str, Any], code: KindReason
) -> None:
    assert tells(name_kinds(around(padded(), padded(**change)[-1]))[0].sentence, code)


def test_another_value_is_no_other_attention() -> None:
    reference = padded()
    kinds = name_kinds(around(reference, reference[-1] + 0.01 * normal(2, TOKENS, 4 * SMALL, seed=9)))
    codes = KindReason.KEY_HEADS_ALTERNATE, KindReason.ROTARY_PAIRING
    assert not any(tells(kind.sentence, *codes) for kind in kinds)


def window(size: int) -> Tensor:
    """What each token of two documents may see of the last tokens of its own: (1, tokens, tokens)."""
    at = torch.arange(TOKENS)
    document = at // 15
    seen = (document[:, None] == document[None]) & (at[:, None] >= at[None]) & (at[:, None] - at[None] < size)
    return seen[None]


@pytest.mark.parametrize(("other", "side"), [(5, "reference"), (6, None), (7, "target"), (9, None)])
def test_a_window_that_begins_elsewhere(other: int, side: str | None) -> None:
    """One token shorter or longer; twins: equal windows, and one that is three longer."""
    masks = window(6), window(other)
    sides = [attention(documents=mask[0]) for mask in masks[::-1]]
    found = name_kinds(evidence_of(*sides, fused="keys and values", mask=masks[0]))
    told = [kind.sentence for kind in found if kind.sentence.code in ATTENDED]
    assert [one.place("side") for one in told] == ([] if side is None else [side]), told


def test_packed_documents_do_not_hide_a_scale() -> None:
    mask = window(TOKENS)
    sides = [attention(documents=mask[0], scale=scale) for scale in (0.125, 0.25)]
    found = name_kinds(evidence_of(*sides, fused="keys and values", mask=mask))
    assert tells(found[0].sentence, KindReason.SCORES_SCALED)


KEYS, ODD = 9, 12
"""tokens of the other sequence, and a size of a head that no large model has"""


def crossed(
    *, masked: bool = True, inverted: bool = False, exchanged: bool = False, scale: float = ODD**-0.5
) -> tuple[Any, ...]:
    """Queries of one sequence, keys and values of another, the mask of its pads and what is made of them."""
    q = normal(2, TOKENS, 4 * ODD, seed=4)
    k, v = (normal(2, KEYS, 4 * ODD, seed=seed) for seed in (2, 3))
    keep = torch.ones(2, 1, 1, KEYS, dtype=torch.bool)
    keep[1, ..., 6:] = False
    a, b, c = (x.unflatten(-1, (-1, ODD)).transpose(1, 2).double() for x in (q, k, v))
    b, c = (c, b) if exchanged else (b, c)
    scores = a @ b.transpose(-2, -1) * scale
    scores = scores.masked_fill(keep if inverted else ~keep, -math.inf) if masked else scores
    return q, k, v, keep, (scores.softmax(-1) @ c).transpose(1, 2).flatten(-2).float()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"masked": False}, KindReason.MASK_UNUSED),
        ({"inverted": True}, KindReason.MASK_INVERTED),
        ({"exchanged": True}, KindReason.KEYS_FOR_VALUES),
        ({"scale": 0.5}, KindReason.SCORES_SCALED),
    ],
    ids=["no mask", "inverted", "exchanged", "scale"],
)
@pytest.mark.parametrize("hides", [False, True], ids=["true is seen", "true is hidden"])
def test_attention_to_another_sequence(change: dict[str, Any], code: KindReason, hides: bool) -> None:
    q, k, v, keep, out = crossed()
    held = (("output.0", q), ("output.0", k), ("output.0", v), ("input.mask", ~keep if hides else keep))
    near = tuple(pair(slot, None, value) for slot, value in held)
    known = Surroundings(module="dec.0.cross_attn", name="dec.0.cross_attn.proj", type="Attn", nearby=near)
    case_ = case(crossed(**change)[-1], out, slot="input.0", module="dec.0.cross_attn", surroundings=known)
    told = {kind.sentence.code for kind in name_kinds(case_)}
    assert told & (ATTENDED | {KindReason.MASK_UNUSED, KindReason.MASK_INVERTED}) == {code}


def test_pads_that_the_causal_mask_alone_leaves_in_sight() -> None:
    reference = padded()
    q, k, v, cos, sin, _mask, _ = reference
    before = torch.zeros(TOKENS, TOKENS).masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -math.inf)
    heads = [x.unflatten(-1, (-1, SMALL)).transpose(1, 2).double() for x in (q, k, v)]
    for at in (0, 1):
        turned_ = torch.cat((-heads[at][..., SMALL // 2 :], heads[at][..., : SMALL // 2]), -1)
        heads[at] = heads[at] * cos[0].double() + turned_ * sin[0].double()
    a, b, c = heads[0], heads[1].repeat_interleave(2, 1), heads[2].repeat_interleave(2, 1)
    seen = ((a @ b.transpose(-2, -1) * SMALL**-0.5 + before).softmax(-1) @ c).transpose(1, 2).flatten(-2)
    found = name_kinds(around(reference, seen.float()))[0].sentence
    assert tells(found, KindReason.MASK_UNUSED)
    assert (found.place("left"), found.place("hidden")) == ("causal", "padding")


def _hides(what: str) -> tuple[np.ndarray[Any, Any], str]:
    """A mask of earlier tokens, and what it is said to be."""
    rows, columns = np.indices((12, 12))
    later = columns > rows
    thirds, halves = (np.arange(12) // size for size in (4, 6))
    at_end, at_start = (np.isin(np.arange(12), places) for places in ([9, 10, 11], [0, 1, 2]))
    masks = {
        "padding at the end": (at_end[None], "padding"),
        "padding in between": (np.isin(np.arange(12), [5, 6])[None], "padding"),
        "three documents": (thirds[:, None] != thirds[None], "documents"),
        "two documents, or padding whose own queries see it": (halves[:, None] != halves[None], "more"),
        "padding at the start, whose own queries see it": (at_start[None] & ~at_start[:, None], "more"),
        "a window": (rows - columns >= 4, "window"),
        "a window in documents": ((thirds[:, None] != thirds[None]) | (rows - columns >= 3), "more"),
    }
    mask, name = masks[what]
    return np.asarray(mask & ~later), name


@pytest.mark.parametrize(
    "what",
    [
        "padding at the end",
        "padding in between",
        "three documents",
        "two documents, or padding whose own queries see it",
        "padding at the start, whose own queries see it",
        "a window",
        "a window in documents",
    ],
)
def test_what_a_mask_hides_of_earlier_tokens(what: str) -> None:
    mask, name = _hides(what)
    assert what_is_hidden(mask) == name


def gated(gate: Tensor, factor: Tensor) -> Tensor:
    return F.silu(gate) * factor


def test_exchanged_gate_and_factor() -> None:
    """Twins: another function, and a factor that is no half."""
    both = normal(2, TOKENS, 32, seed=51)
    gate, factor = both.chunk(2, -1)
    around = Surroundings(module="mlp", name="mlp.down", type="MLP", nearby=(pair("output.0", None, both),))

    def told(target: Tensor, reference: Tensor) -> bool:
        found = name_kinds(case(target, reference, slot="input.0", module="mlp", surroundings=around))
        return any(kind.sentence.code is KindReason.GATE_FOR_UP for kind in found)

    assert told(gated(factor, gate), gated(gate, factor))
    assert told(gated(gate, factor), gated(factor, gate))
    assert not told(gated(gate, factor) * (1 + 1e-7), gated(gate, factor))
    assert not told(F.relu(factor) * gate, gated(gate, factor))
    assert not told(gated(factor, gate.flip(-1)), gated(gate, factor))


@pytest.mark.parametrize("gates", [False, True])
def test_another_activation_between_two_projections(gates: bool) -> None:
    """Twins: equal ones that are rounded otherwise, and a function that is not known."""
    first, factor = normal(2, TOKENS, 32, seed=55), normal(2, TOKENS, 32, seed=56)
    near = tuple(pair("output.0", None, x) for x in ((first, factor) if gates else (first,)))
    around = Surroundings(module="mlp", name="mlp.down", type="MLP", nearby=near)
    by = factor if gates else torch.ones(())

    def told(target: Tensor, reference: Tensor) -> bool:
        found = name_kinds(
            case(target * by, reference * by, slot="input.0", module="mlp", surroundings=around)
        )
        return any(kind.sentence.code is KindReason.ACTIVATION for kind in found)

    assert told(F.gelu(first), F.gelu(first, approximate="tanh"))
    assert told(F.silu(first), F.relu(first))
    assert not told(F.silu(first) * (1 + 1e-7), F.silu(first))
    assert not told(F.softplus(first), F.silu(first))
    assert not told(F.gelu(first), F.gelu(first) + 1e-2 * normal(2, TOKENS, 32, seed=57))
