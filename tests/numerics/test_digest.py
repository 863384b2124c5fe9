"""The digest adds over shards and sees every rearrangement."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.numerics.arrays import arrays
from trueup.numerics._native import summarise_array
from trueup.numerics.digest import GENERATORS, MASK, digest, mix, rebase
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import HAS_DIGEST


def of(array: NDArray[Any], dtype: str | None = None) -> int:
    return int(summarise_array(array, HAS_DIGEST, dtype)["digest"])


@settings(deadline=None)
@given(arrays(), st.data())
def test_shards_add_up(case: tuple[NDArray[Any], str], data: st.DataObject) -> None:
    array, dtype = case
    if not array.ndim:
        return
    dim = data.draw(st.integers(0, array.ndim - 1))
    cut = data.draw(st.integers(0, array.shape[dim]))
    first, second = np.split(array, [cut], axis=dim)
    offset = [cut if d == dim else 0 for d in range(array.ndim)]
    assert (of(first, dtype) + rebase(of(second, dtype), offset)) & MASK == of(array, dtype)


def test_shards_do_not_add_up_at_the_wrong_place() -> None:
    array = np.arange(24.0).reshape(4, 6)
    assert (of(array[:2]) + rebase(of(array[2:]), [3, 0])) & MASK != of(array)


def test_scalar_is_its_mixed_bits() -> None:
    value = np.array(1.5, np.float32)
    expected = int(mix(np.array([0x3FC00000], np.uint64))[0])
    assert of(value) == digest(value) == expected
    assert digest(value.reshape(1, 1)) == expected


def test_complex_counts_imaginary_parts_by_a_constant() -> None:
    value = np.array([2.0 - 3.0j], np.complex64)
    parts = digest(value.real.copy()) + GENERATORS[-1] * digest(value.imag.copy())
    assert of(value) == parts & MASK
    assert of(value) != of(value.conj())


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "int64", "float8_e4m3fn"])
def test_every_single_bit_is_seen(name: str) -> None:
    entry = DTYPES[name]
    unsigned = f"<u{entry.itemsize}"
    bits = (
        np.random.default_rng(0)
        .integers(0, 256, 96 * entry.itemsize, dtype=np.uint8)
        .view(unsigned)
        .reshape(8, 12)
    )
    seen = {of(bits.view(entry.storage), name)}
    for bit in range(8 * entry.itemsize):
        for place in np.ndindex(8, 12):
            changed = bits.copy()
            changed[place] ^= np.array(1 << bit, unsigned)
            seen.add(of(changed.view(entry.storage), name))
    assert len(seen) == 1 + 96 * 8 * entry.itemsize


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "int64", "int32"])
def test_rearrangements_collide_nowhere(name: str) -> None:
    """Few distinct, even constant values: what a real mask, bias or gradient of ones looks like."""
    rng = np.random.default_rng(3)
    base = rng.choice([-1, 1], (64, 64)).astype(name)
    variants: list[NDArray[Any]] = [base, -base, base.T.copy(), base[::-1].copy(), base[:, ::-1].copy()]
    for _ in range(300):
        i, j, k, m = rng.integers(0, 64, 4)
        rows, signs, corners = base.copy(), base.copy(), base.copy()
        rows[[i, j]] = rows[[j, i]]
        signs[i] *= -1
        corners[[i, j], [k, m]] *= -1
        variants += [rows, signs, corners]
    for value in (0, 1, 2, -1, 3):
        variants += [np.full((64, 64), value, name)]
    assert_no_collision(variants)


def assert_no_collision(variants: list[NDArray[Any]]) -> None:
    content = {array.tobytes() for array in variants}
    assert len({of(array) for array in variants}) == len(content)


def test_sign_flips_of_float64_are_why_bits_are_mixed() -> None:
    """The twin: with bare bits an even number of sign flips vanishes modulo 2^64."""
    row = np.random.default_rng(4).standard_normal(16)
    weights = np.array([pow(GENERATORS[0], i, 1 << 64) for i in range(16)], np.uint64)
    bare = [int((array.view(np.uint64) * weights).sum(dtype=np.uint64)) for array in (row, -row)]
    assert bare[0] == bare[1]
    assert of(row) != of(-row)


def test_powers_of_two_apart_and_large_constants() -> None:
    """Weights 2^k places apart agree in their low bits; those of a constant sum to a multiple of 2^k."""
    base = np.zeros(1 << 16, np.float32)
    variants = [base]
    for k in range(16):
        pair = base.copy()
        pair[[0, 1 << k]] = 1.0, -1.0
        variants += [pair, -pair]
    variants += [np.full(1 << 16, value, np.float32) for value in (1.0, -1.0, 2.0, 4.0, 0.5)]
    assert_no_collision(variants)


def test_minus_zero_and_payloads_count() -> None:
    quiet, other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert of(np.array([0.0])) != of(np.array([-0.0]))
    assert of(np.array([quiet])) != of(np.array([other]))


def test_mix_is_a_bijection() -> None:
    words = np.random.default_rng(5).integers(0, 1 << 63, 1000, dtype=np.uint64)
    half = mix(words)
    unfolded = half ^ (half >> np.uint64(16)) ^ (half >> np.uint64(32)) ^ (half >> np.uint64(48))
    np.testing.assert_array_equal(unfolded ^ (unfolded >> np.uint64(32)), words)


def test_too_many_dims() -> None:
    with pytest.raises(ValueError, match="16"):
        digest(np.zeros((1,) * 17))
