"""The definition of the digest: a 64-bit hash that sees order and adds over shards.

    h = sum over elements e of mix(bits_e) * prod over dims d of g_d^(i_d)    (mod 2^64)

`i_d` are the element's coordinates counted from the shard's own start and g_d odd constants, so the shard
that starts at offset o counts in the whole as ``rebase(h, o) = h * prod_d g_d^(o_d)``, and layouts found out
later still add up. `bits_e` are the element's raw bits, so -0 is not 0 and NaN payloads count. A complex
element counts as ``mix(real) + K mix(imaginary)``.

``mix(b) = m ^ (m >> 16)`` with ``m = b ^ (b >> 32)`` carries high bits down; why: docs/decisions/0001.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trueup.numerics.dtypes import bits_from_array, dtype_of, real_view
from trueup.types.arrays import Array

MASK = (1 << 64) - 1
MAX_DIMS = 16


def splitmix64(value: int) -> int:
    """One step of the SplitMix64 generator (Steele, Lea, Flood 2014), as a hash of 64 bits."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


GENERATORS: tuple[int, ...] = tuple(splitmix64(d + 1) & ~7 | 5 for d in range(MAX_DIMS + 1))
"""g_0 .. g_15, then K. All are 5 modulo 8: their powers repeat after 2^62, the longest an odd number can."""


def mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit words that lets no single bit's change be a multiple of more than 2^15."""
    folded = bits ^ (bits >> np.uint64(32))
    mixed: NDArray[np.uint64] = folded ^ (folded >> np.uint64(16))
    return mixed


def powers(dim: int, size: int) -> NDArray[np.uint64]:
    """``g_dim^0 .. g_dim^(size - 1)`` modulo 2^64."""
    factors = np.full(size, GENERATORS[dim], np.uint64)
    factors[:1] = 1
    weights: NDArray[np.uint64] = np.multiply.accumulate(factors)
    return weights


def digest(array: Array, dtype: str | None = None) -> int:
    """Hash of one shard, its coordinates counted from its own start; 0 when empty, ``mix(bits)`` when 0-d.

    Raises:
        ValueError: more than 16 dims, or an unsupported dtype.
    """
    if array.ndim > MAX_DIMS:
        raise ValueError(f"{array.ndim} dimensions, at most {MAX_DIMS} are supported")
    parts, _ = real_view(array, dtype_of(array, dtype))
    generators = [*range(array.ndim), *([MAX_DIMS] if parts.ndim > array.ndim else [])]
    total = mix(bits_from_array(parts))
    for dim in reversed(generators):
        total = (total * powers(dim, total.shape[-1])).sum(axis=-1, dtype=np.uint64)
    return int(total)


def rebase(value: int, offset: Sequence[int]) -> int:
    """What a shard's digest counts in the whole tensor, given the shard's offset in every dim."""
    for dim, start in enumerate(offset):
        value = value * pow(GENERATORS[dim], start, 1 << 64) & MASK
    return value
