"""Whole numbers that a coarse dtype does not hold: positions and timesteps from 257 on in bfloat16 are
even."""

from __future__ import annotations

import numpy as np

from trueup.numerics.dtypes import rounded_to
from trueup.types.arrays import Floats


def lost_whole_numbers(rounded: Floats, whole: Floats, dtype: str) -> dict[str, float] | None:
    """How many of one side's whole numbers are others on the other, ``num`` of ``total``, and the first:
    ``number``, that ``becomes``. None where a side is not the other in ``dtype``, or nothing is lost."""
    if rounded.shape != whole.shape or not np.isfinite(whole).all():
        return None
    if not ((whole == np.round(whole)) & (whole >= 0)).all():  # a mask of -10,000 is no place
        return None
    if not (rounded == rounded_to(whole, dtype)).all():
        return None
    other = np.flatnonzero((rounded != whole).ravel())
    if not other.size:
        return None
    first = {"number": float(whole.ravel()[other[0]]), "becomes": float(rounded.ravel()[other[0]])}
    return {"num": len(other), "total": whole.size, **first}
