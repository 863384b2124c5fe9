"""The C kernel where it was built, and what stands in for it where it was not."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from trueup.numerics import rows
from trueup.numerics.digest import digest
from trueup.numerics.dtypes import dtype_of
from trueup.numerics.sketch import sketch
from trueup.numerics.statistics import empty_summary, statistics
from trueup.numerics.summary import HAS_CRC32, HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS, SUMMARY_DTYPE
from trueup.types.arrays import Array

kernels: Any
try:
    kernels = importlib.import_module("trueup.numerics._kernels")
except ImportError:
    kernels = None

AVAILABLE: bool = kernels is not None
"""Whether the C kernel was built. Without it results are the same and take ten to a hundred times longer."""

Rows: type[rows.Rows] = kernels.Rows if AVAILABLE else rows.Rows
"""The summaries of one step; see ``numerics.rows``."""

EVERYTHING = HAS_STATISTICS | HAS_DIGEST | HAS_SKETCH | HAS_CRC32


def summarise_array(
    array: Array,
    want: int = HAS_STATISTICS | HAS_DIGEST,
    dtype: str | None = None,
    full_shape: Sequence[int] | None = None,
    offset: Sequence[int] | None = None,
) -> np.void:
    """One SUMMARY_DTYPE scalar of an array of any layout, by the kernel or else by the numpy definition.

    Args:
        array: values; bfloat16 as uint16 and fp8 as uint8, with `dtype` naming what they are.
        want: HAS_* bits of the groups to compute; the others stay 0 or NaN.
        dtype: element type by name; the array's own by default.
        full_shape: for the sketch of a shard, the shape of the whole tensor.
        offset: for the sketch of a shard, where it starts.

    Raises:
        ValueError: an unsupported dtype, or more than 16 dims.
    """
    entry = dtype_of(array, dtype)
    if not AVAILABLE:
        return summarise_by_definition(array, want, dtype, full_shape, offset)
    if any(stride < 0 or stride % entry.itemsize for stride in array.strides):
        array = np.ascontiguousarray(array)
    strides = tuple(stride // entry.itemsize for stride in array.strides)
    out = np.empty((), SUMMARY_DTYPE)
    kernels.summarise(
        array.ctypes.data,
        array.shape,
        strides,
        entry.code,
        want,
        out.ctypes.data,
        None if full_shape is None else tuple(full_shape),
        None if offset is None else tuple(offset),
    )
    scalar: np.void = out.reshape(1)[0]
    return scalar


def summarise_by_definition(
    array: Array,
    want: int = HAS_STATISTICS | HAS_DIGEST,
    dtype: str | None = None,
    full_shape: Sequence[int] | None = None,
    offset: Sequence[int] | None = None,
) -> np.void:
    """The same as :func:`summarise_array`, by the numpy definitions alone."""
    out = statistics(array, dtype) if want & HAS_STATISTICS else empty_summary()
    out["flags"], out["numel"] = want, array.size
    if want & HAS_DIGEST:
        out["digest"] = digest(array, dtype)
    if want & HAS_SKETCH:
        out["sketch"] = sketch(array, full_shape, offset, dtype)
    if want & HAS_CRC32:
        out["crc32"] = zlib.crc32(np.ascontiguousarray(array).tobytes())
    return out
