"""On which dtype's grid numbers lie, and which dtype's rounding is as large as an error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trueup.diagnosing.kinds.thresholds import (
    LEAST_OF_ROUNDOFF,
    MOST_OF_ROUNDOFF,
    MOST_OF_ROUNDOFF_FLOAT32,
    SAMPLED_VALUES,
)
from trueup.numerics.dtypes import DTYPES, float64_from_array
from trueup.types.arrays import Bools, Floats

COARSE = ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "tf32", "float32")
"""From the coarsest on."""
ROUNDOFF = {name: (2.0**-11 if name == "tf32" else DTYPES[name].eps) for name in COARSE}
_MANTISSA_LEFT_OUT = {"bfloat16": 16, "tf32": 13}


def sample(values: Floats) -> Floats:
    """Up to ``SAMPLED_VALUES`` nonzero finite values, evenly spaced."""
    flat = values.ravel()
    flat = flat[:: max(flat.size // SAMPLED_VALUES, 1)]
    seen: Floats = flat[np.isfinite(flat) & (flat != 0)]
    return seen


def grid_of(values: Floats) -> str | None:
    """The coarsest dtype that holds every one of the sampled values; None beyond float32 or without
    values."""
    seen = sample(values)
    if not seen.size:
        return None
    return next((name for name in COARSE if bool(on_grid(seen, name).all())), None)


def on_grid(values: Floats, dtype: str) -> Bools:
    """Which values a dtype represents exactly."""
    if dtype.startswith("float8"):
        every = float64_from_array(np.arange(256, dtype=np.uint8), dtype)
        table = np.unique(every[np.isfinite(every)])
        at = np.clip(np.searchsorted(table, values), 0, len(table) - 1)
        return np.asarray(table[at] == values)
    with np.errstate(over="ignore", under="ignore"):
        if dtype == "float16":
            return np.asarray(values.astype(np.float16).astype(np.float64) == values)
        narrow = values.astype(np.float32)
        exact = narrow.astype(np.float64) == values
    if dtype == "float32":
        return np.asarray(exact)
    mask = np.uint32((1 << _MANTISSA_LEFT_OUT[dtype]) - 1)
    return np.asarray(exact & ((narrow.view(np.uint32) & mask) == 0))


def dtype_of_error(relative: float, is_possible: Callable[[str], bool] = lambda dtype: True) -> str | None:
    """The finest possible dtype whose rounding leaves a relative l2 error of this size; None where none does.
    Sizes overlap: one rounding to bfloat16 is as large as four to tf32, in which no CPU computes."""
    for name in filter(is_possible, reversed(COARSE)):
        most = MOST_OF_ROUNDOFF_FLOAT32 if name == "float32" else MOST_OF_ROUNDOFF
        if LEAST_OF_ROUNDOFF * ROUNDOFF[name] <= relative <= most * ROUNDOFF[name]:
            return name
    return None
