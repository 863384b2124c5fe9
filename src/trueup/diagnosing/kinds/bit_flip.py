"""A few isolated elements differ by one bit; everything else is equal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.naming import named, number, subject
from trueup.numerics.dtypes import DTYPES, bits_from_array, float64_from_array
from trueup.types.finding import Kind

MAX_ELEMENTS = 4
MIN_VALUES = 16
_HIGH = 3
"""Bits below this one are what rounding changes."""


def rule(evidence: Evidence) -> Kind | None:
    """Named where at most a few elements differ, each by a single bit too high to be rounding."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None or not evidence.same_shape or t.dtype != r.dtype or t.numel < MIN_VALUES:
        return None
    a, b = t.raw, r.raw
    if a is None or b is None or DTYPES[t.dtype].kind == "complex":
        return None
    unsigned = np.dtype(f"u{DTYPES[t.dtype].itemsize}")
    different = np.flatnonzero((a.view(unsigned) != b.view(unsigned)).ravel())
    if not 0 < len(different) <= MAX_ELEMENTS:
        return None
    bits = bits_from_array(a.reshape(-1)[different]) ^ bits_from_array(b.reshape(-1)[different])
    if not all(int(x).bit_count() == 1 for x in bits):
        return None
    places = [int(x).bit_length() - 1 for x in bits]
    if min(places) < _HIGH:
        return None
    first = np.unravel_index(int(different[0]), t.shape)
    x, y = (_value(k, int(different[0]), t.dtype) for k in (a, b))
    said = (
        f"{len(different)} of {t.numel} elements differ, each by one bit: "
        f"{subject(evidence)}[{', '.join(map(str, map(int, first)))}] is {number(x)} for {number(y)} "
        f"(bit {places[0]} of {t.dtype})"
    )
    return named("bit_flip", 0.97 if len(different) == 1 else 0.9, said, evidence, whole=True)


def _value(raw: NDArray[Any], at: int, dtype: str) -> float:
    return float(float64_from_array(raw.reshape(-1)[at : at + 1], dtype)[0])
