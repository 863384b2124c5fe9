"""Brings the numbers of boxes to the host, one transfer a device and kind, and makes parts of them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from trueup.adapters.torch.device.chunks import FIXED, TOP, BoxNumbers
from trueup.adapters.torch.device.parts import COUNTS, EXTREMES, PART_DTYPE
from trueup.adapters.torch.memory import numpy_of
from trueup.numerics.digest import MASK
from trueup.numerics.dtypes import DTYPES
from trueup.types.arrays import Array

_SUMS = len(EXTREMES)
_INF = float("inf")


def parts_from_numbers(numbers: list[BoxNumbers], *, wide: bool) -> Array:
    """The boxes as PART_DTYPE, in order.

    Args:
        numbers: of one device.
        wide: whether they were summed in float64.
    """
    integers: NDArray[np.int64] = numpy_of(torch.stack([one.integers for one in numbers]).cpu())
    floats = numpy_of(torch.stack([one.floats for one in numbers]).cpu()).astype(np.float64)
    parts = np.zeros(len(numbers), PART_DTYPE)
    finite, positive, negative, zero = integers[:, : len(COUNTS)].T
    num_real = np.array([one.num_real for one in numbers])
    parts["num_nan"] = num_real - finite - positive - negative
    parts["num_posinf"], parts["num_neginf"] = positive, negative
    parts["num_zero"] = zero - (num_real - finite)
    factors = np.array([one.digest_factor & MASK for one in numbers], np.uint64)
    parts["digest"] = integers[:, len(COUNTS)].view(np.uint64) * factors
    for column, name in enumerate(EXTREMES):
        parts[name] = floats[:, column]
    if wide:
        parts["sum"], parts["sum_sq"] = floats[:, _SUMS], floats[:, _SUMS + 1]
        if floats.shape[1] > _SUMS + 2:
            parts["sketch"] = floats[:, _SUMS + 2 :]
    else:
        _from_fixed(parts, integers, floats[:, _SUMS], [one.dtype for one in numbers])
    only = np.array([one.sketch_only for one in numbers], bool)
    for name in (*COUNTS, "digest", "sum", "sum_sq"):
        parts[name][only] = 0
    for name, none in zip(EXTREMES, (_INF, -_INF, _INF), strict=True):
        parts[name][only] = none
    return parts


def _from_fixed(
    parts: Array, integers: NDArray[np.int64], scale: NDArray[np.float64], dtypes: list[str]
) -> None:
    at = len(COUNTS) + 1
    exact, sums = integers[:, at : at + 3], integers[:, at + 3 :]
    parts["sum"] = sums[:, 0] / FIXED * scale
    parts["sum_sq"] = sums[:, 1] / FIXED * scale * scale
    if sums.shape[1] > 2:
        parts["sketch"] = sums[:, 2:] / FIXED * scale[:, None]
    for row, dtype in enumerate(dtypes):
        if DTYPES[dtype].kind != "float":
            parts[row]["minimum"], parts[row]["maximum"], parts[row]["smallest_nonzero"] = _exact(
                dtype, *(int(n) for n in exact[row])
            )


def _exact(dtype: str, low: int, high: int, small: int) -> tuple[float, float, float]:
    """Extremes of integers that were taken as int64."""
    if dtype == "uint64":
        return float(low - TOP), float(high - TOP), _INF if small == -(TOP + 1) else float(small - TOP)
    return float(low), float(high), _INF if small == TOP else float(-small)
