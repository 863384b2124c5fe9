"""The definition of the sketch: 64 numbers whose differences estimate the norm of the tensors' difference.

A CountSketch (Charikar, Chen, Farach-Colton 2002) over the row-major index i of the *full* tensor, split into
blocks of 1024, ``b = i div 1024`` and ``p = i mod 1024``:

    y[(p + rotation_b) mod 64] += sign[(start_b + p) mod 2048] * x_i

Signs come from a fixed table whose second half is the first one negated; each block reads it from its own
place `start_b` and turns the buckets by its own `rotation_b`, both from a hash of b. A plain ``i mod 64``
would put a faulty channel into a single bucket whenever the width is a multiple of 64, and one sign a block
would make a constant shift's estimate as uncertain as a coin toss. Linear: sketches add over shards and
partial sums, and subtract. Non-finite elements count as 0. Complex tensors are taken as their real view,
shape (..., 2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trueup.numerics.digest import splitmix64
from trueup.numerics.dtypes import dtype_of, float64_from_array, real_view
from trueup.numerics.summary import SKETCH_SIZE
from trueup.types.arrays import Array

PERIOD = 1024
SIGN_STEP = 16
"""a block starts at a multiple of this in the sign table"""
_NUM_SIGNS = 2048
_BLOCK_SEED = 0xC0FFEE5EED


def _sign_table() -> NDArray[np.float64]:
    half = np.array([-1.0 if splitmix64(0x5151 + j) >> 63 else 1.0 for j in range(PERIOD)])
    return np.concatenate([half, -half])


SIGNS = _sign_table()
"""The 2048 signs."""


def _splitmix64_array(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed: NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return hashed


def block_places(block: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each block starts in the sign table, in ``SIGN_STEP``s, and the rotation of its buckets."""
    noise = _splitmix64_array(block.astype(np.uint64) ^ np.uint64(_BLOCK_SEED))
    rotation = (noise & np.uint64(SKETCH_SIZE - 1)).astype(np.int64)
    return (noise >> np.uint64(57)).astype(np.int64), rotation


def places(flat: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Bucket and sign of each row-major index of the full tensor."""
    block, place = np.divmod(flat, PERIOD)
    start, rotation = block_places(block)
    start = start * SIGN_STEP
    return (place + rotation) % SKETCH_SIZE, SIGNS[(start + place) % _NUM_SIGNS]


def sketch(
    array: Array,
    full_shape: Sequence[int] | None = None,
    offset: Sequence[int] | None = None,
    dtype: str | None = None,
) -> NDArray[np.float32]:
    """The 64 numbers of a tensor, or what a shard of it adds; summed in float64, rounded once at the end.

    Args:
        array: the tensor or shard.
        full_shape: shape of the tensor it is a shard of; itself by default.
        offset: where in it the shard starts; all zeros by default.
        dtype: element type by name, where numpy has none of its own.
    """
    parts, entry = real_view(array, dtype_of(array, dtype))
    extra = (2,) if parts.ndim > array.ndim else ()
    full = (*(array.shape if full_shape is None else full_shape), *extra)
    start = (*((0,) * array.ndim if offset is None else offset), *(0 for _ in extra))
    flat = np.zeros(parts.shape, np.int64)
    stride = 1
    for dim in reversed(range(parts.ndim)):
        index = (np.arange(parts.shape[dim]) + start[dim]) * stride
        flat += index.reshape(-1, *(1,) * (parts.ndim - 1 - dim))
        stride *= full[dim]
    values = float64_from_array(parts, entry.name)
    buckets, signs = places(flat.ravel())
    weighted = np.where(np.isfinite(values), values, 0.0).ravel() * signs
    with np.errstate(over="ignore", invalid="ignore"):
        return np.bincount(buckets, weighted, SKETCH_SIZE).astype(np.float32)


def relative_error(actual: Array, expected: Array, expected_l2: Array) -> NDArray[np.float64]:
    """Estimate of ``||a - e|| / ||e||`` a row: ``||y_a - y_e|| / expected_l2``, standard deviation about 9 %.

    Args:
        actual: sketches, (N, 64).
        expected: sketches, (N, 64).
        expected_l2: l2 norms of the expected tensors, (N,).

    0 where the sketches are equal (for any norm), infinite where they differ and the norm is 0, NaN
    where a sketch or the norm is.
    """
    distance = _norm(np.asarray(actual, np.float64) - np.asarray(expected, np.float64))
    norm = np.asarray(expected_l2, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((distance == 0) & ~np.isnan(norm), 0.0, distance / norm)


def scale_residual(actual: Array, expected: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Estimates of the scale ``a = <t, r> / ||r||^2`` and the residual ``||t - a r|| / ||t||``, one a row.

    The scale of ``t = a r + noise`` is known to about ``||noise|| / ||r|| / 8``. NaN where a norm is 0.
    """
    target, reference = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = (target * reference).sum(axis=-1) / np.square(reference).sum(axis=-1)
        residual = _norm(target - scale[..., None] * reference) / _norm(target)
    return scale, residual


def _norm(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norm: NDArray[np.float64] = np.sqrt(np.square(rows).sum(axis=-1))
    return norm
