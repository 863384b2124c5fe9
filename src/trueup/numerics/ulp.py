"""Unit roundoff by dtype, and how many representable values lie between two."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trueup.numerics.dtypes import bits_from_array, dtype_from_name, dtype_of
from trueup.types.arrays import Array


def unit_roundoff(dtype: str) -> float:
    """Largest relative error of rounding to nearest into `dtype`: half its epsilon; 0 for integers and bool.

    Raises:
        ValueError: an unsupported dtype.

    Example:
        >>> unit_roundoff("bfloat16")
        0.00390625
    """
    return dtype_from_name(dtype).eps


def ulp_distance(actual: Array, expected: Array, dtype: str | None = None) -> NDArray[np.uint64]:
    """Number of steps along the dtype's representable values from one element to the other.

    Floats are mapped to integers in the order of their values, so -0 and 0 are 0 apart and the smallest
    denormals of either sign 2; integers are as far apart as they are. Elementwise, exact, uint64. Meaningful
    for finite elements; what non-finite ones give is unspecified.

    Args:
        actual: real elements; bfloat16 as uint16 and fp8 as uint8.
        expected: the same, of the same dtype and shape.
        dtype: element type by name; the arrays' own by default.

    Raises:
        ValueError: an unsupported or a complex dtype, or two different ones.
    """
    entry = dtype_of(actual, dtype)
    if entry.kind == "complex":
        raise ValueError(f"no ulp distance for {entry.name}: take its real view")
    if dtype_of(expected, dtype) != entry:
        raise ValueError(f"no ulp distance between {actual.dtype} and {expected.dtype}")
    top = np.uint64(1 << (8 * entry.itemsize - 1))
    a, b = bits_from_array(actual), bits_from_array(expected)
    if entry.kind == "float":
        a, b = _ordered(a, top), _ordered(b, top)
    elif entry.kind == "int":
        a, b = a ^ top, b ^ top
    return np.where(a > b, a - b, b - a)


def _ordered(bits: NDArray[np.uint64], top: np.uint64) -> NDArray[np.uint64]:
    """Sign and magnitude to an unsigned integer in the order of the values, both zeros to `top`."""
    magnitude = bits & (top - np.uint64(1))
    with np.errstate(over="ignore"):
        ordered: NDArray[np.uint64] = np.where(bits & top, top - magnitude, top + magnitude)
    return ordered
