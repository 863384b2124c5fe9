"""What values were rounded to, told from the values."""

from __future__ import annotations

import numpy as np

from trueup.types.arrays import Array


def dtype_needed(values: Array) -> str:
    """The coarsest floating dtype that holds these values exactly: what they were rounded to.

    Example:
        >>> dtype_needed(np.float32([1.0, 0.5])), dtype_needed(np.float32([0.1]))
        ('bfloat16', 'float32')
    """
    if values.dtype == np.float16:
        return "float16"
    single = values.astype(np.float32)
    if values.dtype.itemsize > single.itemsize and not np.array_equal(single, values, equal_nan=True):
        return "float64"
    if not (single.view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        half = single.astype(np.float16).astype(np.float32)
    return "float16" if np.array_equal(half, single, equal_nan=True) else "float32"
