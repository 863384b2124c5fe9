"""Two sets of weights compared: what agrees, what differs, what cannot be decided."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.weights.made import CKPT, numbered, weight_sets, weights_of
from trueup.errors import ConfigError, NothingCompared
from trueup.weights.comparing import PairStatus, WeightPair, compare_weights
from trueup.weights.layouts import Heads
from trueup.weights.pairing import most_common
from trueup.weights.weight_set import MemoryWeights


def pair(actual: Any, expected: Any, *dtypes: str, **tolerance: float) -> WeightPair:
    names = dtypes or (actual.dtype.name, expected.dtype.name)
    sides = [weights_of({"w": side}) for side in zip((actual, expected), names, strict=True)]
    return compare_weights(sides[0], sides[1], **tolerance).pairs[0]


def bfloat16(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rounded to nearest even."""
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@settings(max_examples=60, deadline=None)
@given(weight_sets(CKPT))
def test_weights_are_equal_to_themselves(weights: MemoryWeights) -> None:
    comparison = compare_weights(weights, weights)
    assert {found.status for found in comparison.pairs} == {PairStatus.EQUAL}
    assert comparison.exit_code() == 0


def test_one_bit_is_a_difference() -> None:
    array = np.linspace(-1, 1, 9, dtype=np.float32)
    other = array.copy()
    other.view(np.uint32)[3] ^= 1
    found = pair(array, other)
    assert found.status is PairStatus.DIFFERENT
    assert found.metrics is not None
    assert found.metrics.max_ulp_diff == 1
    assert found.metrics.num_bits_different == 1


def test_the_sign_of_zero_is_a_difference_in_bits() -> None:
    found = pair(np.zeros(2, np.float32), -np.zeros(2, np.float32))
    assert found.status is PairStatus.DIFFERENT
    assert found.metrics is not None
    assert found.metrics.max_abs_diff == 0


def test_across_dtypes_rounding_agrees_and_more_does_not() -> None:
    array = numbered(w=(50, 40))["w"]
    rounded = bfloat16(array)
    assert pair(rounded, array, "bfloat16", "float32").status is PairStatus.ROUNDED
    assert pair(array, rounded, "float32", "bfloat16").status is PairStatus.ROUNDED
    assert pair(array.astype(np.float64), array).status is PairStatus.SAME_VALUES
    rounded[7, 7] += 2
    found = pair(rounded, array, "bfloat16", "float32")
    assert found.status is PairStatus.DIFFERENT
    assert found.metrics is not None
    assert found.metrics.max_ulp_diff is None
    assert found.metrics.argmax == 7 * 40 + 7


def test_subnormal_numbers_may_round_to_zero() -> None:
    tiny = np.array([1e-8, 1.0], np.float32)
    assert pair(tiny.astype(np.float16), tiny).status is PairStatus.ROUNDED
    assert pair(np.zeros(2, np.float16), tiny).status is PairStatus.DIFFERENT


def test_overflow_is_no_rounding() -> None:
    large = np.array([1e6], np.float32)
    with np.errstate(over="ignore"):
        assert pair(large.astype(np.float16), large).status is PairStatus.DIFFERENT


def test_a_tolerance_is_kept() -> None:
    array = np.linspace(1, 2, 9, dtype=np.float32)
    assert pair(array * 1.0009, array, rtol=1e-3).status is PairStatus.WITHIN_TOLERANCE
    assert pair(array * 1.0011, array, rtol=1e-3).status is PairStatus.DIFFERENT
    assert pair(array + 0.05, array, atol=0.1).status is PairStatus.WITHIN_TOLERANCE
    wide = (array * 1.0009).astype(np.float64)
    assert pair(wide, array, rtol=1e-3).status is PairStatus.WITHIN_TOLERANCE
    assert pair(wide, array).status is PairStatus.DIFFERENT
    nan = array.copy()
    nan[0] = np.nan
    assert pair(nan, array, rtol=1.0).status is PairStatus.DIFFERENT
    for bad in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match="expected numbers of at least 0"):
            pair(array, array, rtol=bad)


def test_other_shapes_are_undecided() -> None:
    arrays = numbered(w=(3, 4), x=(2, 2))
    turned = compare_weights(MemoryWeights(arrays), MemoryWeights(arrays | {"w": arrays["w"].T}))
    assert turned.pairs[0].status is PairStatus.UNDECIDED
    assert turned.pairs[0].reason == "shape [3, 4] against [4, 3]; is one the other transposed?"
    assert turned.exit_code() == turned.exit_code(allow_unmatched=True) == 2


def test_exit_codes_and_unmatched_weights() -> None:
    arrays = numbered(a=(2,), b=(3,))
    both, one = MemoryWeights(arrays), MemoryWeights({"a": arrays["a"]})
    comparison = compare_weights(both, one)
    assert comparison.only_target == ("b",)
    assert compare_weights(one, both).only_reference == ("b",)
    assert comparison.exit_code() == 2
    assert comparison.exit_code(allow_unmatched=True) == 0
    other = MemoryWeights({"a": arrays["a"] + 1})
    assert compare_weights(both, other).exit_code() == 1, "a difference outweighs what is unmatched"


def test_nothing_compared_is_a_failure() -> None:
    arrays = numbered(a=(2,), b=(3,))
    with pytest.raises(NothingCompared, match="no weight of memory"):
        compare_weights(MemoryWeights({"a": arrays["a"]}), MemoryWeights({"b": arrays["b"]}))
    with pytest.raises(
        NothingCompared, match=r"not one pair could be compared; a: shape \[2\] against \[3\]"
    ):
        compare_weights(MemoryWeights({"a": arrays["a"]}), MemoryWeights({"a": arrays["b"]}))
    with pytest.raises(NothingCompared, match="complex64 against float32"):
        compare_weights(
            MemoryWeights({"a": arrays["a"].astype(np.complex64)}), MemoryWeights({"a": arrays["a"]})
        )


def test_names_that_most_weights_share_do_not_keep_maps_from_the_rest() -> None:
    """MindSpore's names of a linear layer are PyTorch's; those of an embedding and a norm are not."""
    rng = np.random.default_rng(2)
    linear = {f"layers.{at}.fc.weight": rng.standard_normal((3, 2)).astype(np.float32) for at in range(5)}
    others = {"emb": rng.standard_normal((4, 2)).astype(np.float32), "ln": np.ones(2, np.float32)}
    torch_side = MemoryWeights(
        {**linear, "emb.weight": others["emb"], "ln.weight": others["ln"], "ln.bias": others["ln"]}
    )
    mindspore = MemoryWeights(
        {**linear, "emb.embedding_table": others["emb"], "ln.gamma": others["ln"], "ln.beta": others["ln"]}
    )
    renamed, told = most_common(mindspore, torch_side, Heads())
    assert told
    comparison = compare_weights(mindspore, renamed)
    assert (len(comparison.pairs), comparison.exit_code()) == (8, 0)
    extra = MemoryWeights({**linear, "own.weight": others["emb"]})
    assert most_common(extra, torch_side, Heads())[1] == "", "what no map knows stays"
