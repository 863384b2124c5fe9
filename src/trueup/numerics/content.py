"""The definition of the content hash: 64 bits that see which values a tensor holds, not where they lie.

    c = sum over elements e of scramble(bits of float32(e))    (mod 2^64)

Invariant under transposition, reshape and any permutation, it adds over the pieces of a concatenated or
stacked tensor, and zeros count nothing, so neither does padding. Floating values are taken as float32, the
same in every wider dtype; integers count with their value. ``scramble(b)``: multiply by an odd constant, fold
the high half down, multiply again, fold again; scramble(0) = 0. Two tensors meet by chance once in 2^64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trueup.numerics.dtypes import dtype_of, float64_from_array, real_view
from trueup.types.arrays import Array

FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
"""The two multipliers."""

_BLOCK = 1 << 16


def scramble(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit words that keeps 0."""
    mixed: NDArray[np.uint64] = bits * np.uint64(FIRST)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(SECOND)
    mixed ^= mixed >> np.uint64(29)
    return mixed


def content_hash(array: Array, dtype: str | None = None) -> int:
    """Hash of the values of an array, in any order; 0 where all are zero or there is none.

    Example:
        >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
        >>> content_hash(a) == content_hash(a.T) == (content_hash(a[:1]) + content_hash(a[1:])) % 2**64
        True

    Raises:
        ValueError: an unsupported dtype.
    """
    parts, entry = real_view(array, dtype_of(array, dtype))
    flat = np.ascontiguousarray(parts).reshape(-1)
    total = 0
    for start in range(0, flat.size, _BLOCK):
        block = scramble(_bits(flat[start : start + _BLOCK], entry.name, entry.kind))
        total += int(block.sum(dtype=np.uint64))
    return total & 0xFFFFFFFFFFFFFFFF


def _bits(flat: Array, dtype: str, kind: str) -> NDArray[np.uint64]:
    if kind == "float":
        with np.errstate(over="ignore", invalid="ignore"):
            values = float64_from_array(flat, dtype).astype(np.float32) + np.float32(0)
        return np.asarray(values.view(np.uint32).astype(np.uint64))
    return np.asarray(flat.astype(np.int64).view(np.uint64))
