"""What a device computes of a tensor, part by part, and the summary that the host makes of the parts.

A part is a box of the tensor (torch operations) or all of it (the Triton kernel). Counts, extremes and
sums of float64 are combined in the order of the parts: the summary depends on nothing but the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trueup.numerics.summary import (
    HAS_DIGEST,
    HAS_SKETCH,
    HAS_STATISTICS,
    SKETCH_SIZE,
    SUMMARY_DTYPE,
)
from trueup.types.arrays import Array

COUNTS = ("num_nan", "num_posinf", "num_neginf", "num_zero")
EXTREMES = ("minimum", "maximum", "smallest_nonzero")

PART_DTYPE = np.dtype(
    [
        *((name, "<i8") for name in COUNTS),
        ("digest", "<u8"),
        ("minimum", "<f8"),
        ("maximum", "<f8"),
        ("smallest_nonzero", "<f8"),
        ("sum", "<f8"),
        ("sum_sq", "<f8"),
        ("sketch", "<f8", (SKETCH_SIZE,)),
    ]
)
"""One part. No finite element: minimum is inf, maximum -inf; no nonzero one: smallest_nonzero is inf."""

PART_WORDS = PART_DTYPE.itemsize // 8


class Whole(NamedTuple):
    """What the host knows of a tensor whose parts are on a device.

    Attributes:
        row: number of its row.
        numel: logical elements; a complex one counts once.
        num_real: real elements.
        want: HAS_* bits.
        num_parts: consecutive parts it is made of; 0 for an empty tensor.
    """

    row: int
    numel: int
    num_real: int
    want: int
    num_parts: int


def summaries_from_parts(parts: Array | None, wholes: Sequence[Whole] | NDArray[np.int64]) -> Array:
    """One SUMMARY_DTYPE row for each tensor, from its parts in order.

    Args:
        parts: PART_DTYPE, (sum of num_parts,); None where all are empty.
        wholes: in the order of their parts.
    """
    _, numel, num_real, want, num_parts = np.reshape(np.array(wholes, np.int64), (-1, 5)).T
    rows = np.zeros(len(numel), SUMMARY_DTYPE)
    rows["numel"] = numel
    rows["flags"] = want & (HAS_STATISTICS | HAS_DIGEST | HAS_SKETCH)
    for name in ("minimum", "maximum", "mean", "l2_norm", "smallest_nonzero"):
        rows[name] = np.nan
    some = num_parts > 0
    if parts is not None and some.any():
        starts = np.concatenate([[0], np.cumsum(num_parts[some])[:-1]])
        rows[some] = _combined(parts, starts, num_real[some], rows[some])
    return rows


def _combined(parts: Array, starts: NDArray[np.int64], num_real: NDArray[np.int64], rows: Array) -> Array:
    for name in COUNTS:
        rows[name] = np.add.reduceat(parts[name], starts)
    rows["digest"] = np.where(rows["flags"] & HAS_DIGEST, np.add.reduceat(parts["digest"], starts), 0)
    finite = num_real - rows["num_nan"] - rows["num_posinf"] - rows["num_neginf"]
    with np.errstate(all="ignore"):
        low = np.minimum.reduceat(parts["minimum"], starts) + 0.0
        high = np.maximum.reduceat(parts["maximum"], starts) + 0.0
        small = np.minimum.reduceat(parts["smallest_nonzero"], starts)
        rows["minimum"] = np.where(finite > 0, low, np.nan)
        rows["maximum"] = np.where(finite > 0, high, np.nan)
        rows["smallest_nonzero"] = np.where(np.isinf(small), np.nan, small)
        rows["mean"] = np.where(finite > 0, np.add.reduceat(parts["sum"], starts) / finite, np.nan)
        norm = np.sqrt(np.add.reduceat(parts["sum_sq"], starts))
        rows["l2_norm"] = np.where(finite > 0, norm, np.nan)
        sketch = np.add.reduceat(parts["sketch"], starts).astype(np.float32)
    rows["sketch"] = np.where((rows["flags"] & HAS_SKETCH)[:, None], sketch, 0)
    return rows
