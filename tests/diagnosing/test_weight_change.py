"""How a weight differs from the reference's: said of any two weights, and true of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.diagnosing.cases import tells
from trueup.diagnosing.kinds.grids import on_grid
from trueup.diagnosing.stages.weight_change import change_of, held_whole
from trueup.numerics.dtypes import DTYPES
from trueup.types.codes import WeightsCode as Weights
from trueup.types.codes.kinds import OrderCode
from trueup.types.reason import Reason

Array = NDArray[np.float64]
Draw = np.random.Generator


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(np.float64)


W = drawn(12, 16)
SQUARE = drawn(8, 8, seed=1)


def coarse(x: Array, dtype: str) -> Array:
    """Rounded to the nearest."""
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float64)
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


def some_rows(*rows: int) -> Array:
    return np.where(np.isin(np.arange(len(W)), rows)[:, None], drawn(12, 16, seed=3), W)


@pytest.mark.parametrize(
    ("target", "reference", "code", "facts"),
    [
        (W.T, W, Weights.TRANSPOSED, {}),
        (SQUARE.T, SQUARE, Weights.TRANSPOSED, {}),
        (W.T * 1.001, W, Weights.SHAPE, {"target": "[16, 12]", "reference": "[12, 16]"}),
        (np.array([1.0]), np.array([2.5]), Weights.NUMBER, {"target": 1.0, "reference": 2.5}),
        (0 * W + 1, 0 * W + 0.2, Weights.ONE_NUMBER, {"target": 1.0, "reference": 0.2}),
        (0 * W, W, Weights.ZERO, {}),
        (W, 0 * W, Weights.OTHER_INIT, {"reference": 0.0}),
        (-W, W, Weights.NEGATED, {}),
        (1.5 * W, W, Weights.SCALED, {"factor": 1.5}),
        (W - 1, W, Weights.SHIFTED, {"offset": -1.0}),
        (W[::-1], W, Weights.REORDERED, {"what": "rows", "moved": 12, "total": 12}),
        (W[:, [1, 0, *range(2, 16)]], W, Weights.REORDERED, {"what": "columns", "moved": 2, "total": 16}),
        (W.ravel()[::-1].reshape(W.shape), W, Weights.REARRANGED, {}),
        (some_rows(3, 4, 5), W, Weights.PART, {"num": 3, "total": 12, "first": 3, "last": 5}),
        (some_rows(*range(7)), W, Weights.RELATED, {}),
        (coarse(W, "bfloat16"), W, Weights.ROUNDED, {"dtype": "bfloat16", "side": "target"}),
        (coarse(W, "float16"), W, Weights.ROUNDED, {"dtype": "float16", "side": "target"}),
        (W, coarse(W, "float16"), Weights.ROUNDED, {"dtype": "float16", "side": "reference"}),
        # as far as a rounding, but of no dtype: moved by an update
        (W * (1 + 1e-4 * drawn(12, 16, seed=4)), W, Weights.NEAR, {}),
        (1e-6 * drawn(12, 16, seed=3), 1e-6 * W, Weights.OTHER_DRAW, {}),
        (drawn(12, 16, seed=3), W, Weights.OTHER_DRAW, {"target": float(drawn(12, 16, seed=3).std())}),
        (5 + drawn(12, 16, seed=3), W, Weights.OTHER_INIT, {}),
        (3 * drawn(12, 16, seed=3), W, Weights.OTHER_INIT, {"reference": float(W.std())}),
        (W + drawn(12, 16, seed=3), W, Weights.RELATED, {}),
        (1 + 0.01 * drawn(16, seed=3), 1 + 0.01 * drawn(16, seed=5), Weights.NEAR, {}),
        (None, W, Weights.NOT_STORED, {}),
        (W, W, None, {}),
    ],
)
def test_each_way(target: Any, reference: Any, code: Weights | None, facts: dict[str, Any]) -> None:
    found = change_of(target, reference, "float32", "float32")
    assert (None if found is None else found.evidence.code) == code
    if found is not None:
        assert tells(found.evidence, found.evidence.code, **facts)


STACK = drawn(3, 8, 5, seed=9)
INTERLEAVED = W.reshape(2, 6, 16).swapaxes(0, 1).reshape(12, 16)
TIED = np.repeat(W[:6], 2, axis=0)


@pytest.mark.parametrize(
    ("target", "reference", "name", "order", "what"),
    [
        (np.roll(W, 6, 0), W, "halves_exchanged", OrderCode.HALVES_SWAPPED, "rows"),
        (np.roll(W, 8, 1), W, "halves_exchanged", OrderCode.HALVES_SWAPPED, "columns"),
        (np.roll(STACK, 4, 1), STACK, "halves_exchanged", OrderCode.HALVES_SWAPPED, "dim 1"),
        (np.roll(W, 5, 0), W, "permuted", OrderCode.ROLLED, "rows"),
        (W.reshape(3, 4, 16)[[2, 0, 1]].reshape(12, 16), W, "permuted", OrderCode.ROLLED, "rows"),
        (W.reshape(3, 4, 16)[[1, 0, 2]].reshape(12, 16), W, "permuted", OrderCode.BLOCKS, "rows"),
        (
            W.reshape(2, 6, 16).swapaxes(0, 1).reshape(12, 16),
            W,
            "permuted",
            OrderCode.HALVES_INTERLEAVED,
            "rows",
        ),
        (W[[1, 0, *range(2, 12)]], W, "permuted", None, "rows"),
        (TIED[[5, 0, 1, 2, 3, 4, *range(6, 12)]], TIED, "permuted", None, "rows"),
    ],
)
def test_which_order(target: Any, reference: Any, name: str, order: OrderCode | None, what: str) -> None:
    """Rows that a random draw would not lay so are told as blocks; two that changed places are not."""
    found = change_of(target, reference, "float32", "float32")
    assert found is not None
    assert (found.name, found.evidence.code, found.evidence.place("what")) == (name, Weights.REORDERED, what)
    assert [one.code for one in found.evidence.parts] == ([] if order is None else [order])


@pytest.mark.parametrize(("other", "whole"), [(0.0, "target"), (1e-6, None)])
@pytest.mark.parametrize("dim", [0, 1])
def test_each_rank_holds_the_whole(dim: int, other: float, whole: str | None) -> None:
    parts: list[Array | None] = list(np.split(W, 2, dim))
    found = held_whole([W, W + other], parts)
    assert (None if found is None else found.evidence.facts) == (
        None if whole is None else {"num": 2, "dim": dim, "side": whole}
    )


# -- of any two ------------------------------------------


def size(x: Array) -> float:
    return float(np.linalg.norm(x))


def is_true(one: Reason, t: Array, r: Array) -> bool:
    """Whether what is said of two weights is true of them."""
    facts: dict[str, Any] = dict(one.facts)
    match one.code:
        case Weights.ZERO:
            return not t.any()
        case Weights.NEGATED:
            return size(t + r) <= 2e-5 * size(r)
        case Weights.SCALED:
            return size(t - facts["factor"] * r) <= 2e-5 * size(t)
        case Weights.SHIFTED:
            return np.allclose(t - r, facts["offset"], rtol=1e-5, atol=1e-5 * np.abs(r).max())
        case Weights.TRANSPOSED:
            return np.allclose(t, r.T)
        case Weights.REORDERED | Weights.REARRANGED:
            return np.array_equal(np.sort(t, axis=None), np.sort(r, axis=None)) and not np.array_equal(t, r)
        case Weights.PART:
            rows = np.flatnonzero((t != r).any(axis=1))
            return (len(rows), rows[0], rows[-1]) == (facts["num"], facts["first"], facts["last"])
        case Weights.ROUNDED:
            fine, held = (r, t) if facts["side"] == "target" else (t, r)
            step = (
                2 * DTYPES[facts["dtype"]].eps * np.maximum(abs(fine), DTYPES[facts["dtype"]].smallest_normal)
            )
            return bool(on_grid(held, facts["dtype"]).all() and (abs(held - fine) <= step).all())
        case Weights.NEAR:
            return bool(np.isclose(facts["rel_diff"], size(t - r) / size(r)))
        case Weights.OTHER_DRAW | Weights.OTHER_INIT | Weights.RELATED:
            spreads = np.allclose([facts["target"], facts["reference"]], [t.std(), r.std()])
            centred = abs(t.mean() - r.mean()) <= 6 * max(t.std(), r.std()) / np.sqrt(t.size)
            alike = centred and abs(t.std() - r.std()) <= (0.1 + 5 / np.sqrt(2 * t.size)) * r.std()
            return bool(spreads) and (one.code is not Weights.OTHER_DRAW or bool(alike))
        case Weights.NUMBER:
            return (facts["target"], facts["reference"]) == (t.item(), r.item())
    return True


BASES: dict[str, Callable[[Array], Array]] = {
    "normal": lambda x: x,
    "small": lambda x: 1e-5 * x,
    "about one": lambda x: 1 + 0.01 * x,
    "ones": lambda x: np.ones_like(x),
    "sparse": lambda x: np.where(abs(x) > 1, x, 0),
}
CHANGES: dict[str, Callable[[Array, Draw], Array]] = {
    "bfloat16": lambda x, draw: coarse(x, "bfloat16"),
    "float16": lambda x, draw: coarse(x, "float16"),
    "scaled": lambda x, draw: x * draw.choice([2.0, 0.5, -1.0, 1.001, 1e-3]),
    "offset": lambda x, draw: x + draw.choice([1.0, -1.0, 1e-3]),
    "rows": lambda x, draw: x[draw.permutation(len(x))],
    "shuffled": lambda x, draw: draw.permutation(x.ravel()).reshape(x.shape),
    "update": lambda x, draw: x - 1e-3 * np.sign(draw.standard_normal(x.shape)),
    "noise": lambda x, draw: x * (1 + draw.choice([1e-7, 1e-4, 1e-2, 1.0]) * draw.standard_normal(x.shape)),
    "some rows": lambda x, draw: np.where((draw.random(len(x)) < 0.3)[:, None], x.std(), x),
    "drawn": lambda x, draw: x.std() * draw.standard_normal(x.shape),
    "zero": lambda x, draw: 0 * x,
}


@settings(max_examples=250, derandomize=True)
@given(
    seed=st.integers(0, 2**16),
    shape=st.sampled_from([(12, 16), (8, 8), (1, 1), (1, 5), (40, 2)]),
    base=st.sampled_from(sorted(BASES)),
    of_target=st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=2),
    of_reference=st.lists(st.sampled_from(sorted(CHANGES)), max_size=1),
)
def test_what_is_said_of_any_two_weights_is_true(
    seed: int, shape: tuple[int, int], base: str, of_target: list[str], of_reference: list[str]
) -> None:
    draw = np.random.default_rng(seed)
    made = BASES[base](draw.standard_normal(shape))
    sides = []
    for names in (of_target, of_reference):
        side = made
        for name in names:
            side = CHANGES[name](side, draw)
        sides.append(side.astype(np.float32).astype(np.float64))
    found = change_of(sides[0], sides[1], "float32", "float32")
    assert found is None or is_true(found.evidence, *sides), found
    assert (found is None) is np.array_equal(*sides)
