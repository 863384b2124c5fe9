"""The definition of a tensor's statistics, in float64 on numpy arrays."""

from __future__ import annotations

import numpy as np

from trueup.numerics.dtypes import dtype_of, float64_from_array, real_view
from trueup.numerics.summary import HAS_STATISTICS, SUMMARY_DTYPE
from trueup.types.arrays import Array


def statistics(array: Array, dtype: str | None = None) -> np.void:
    """Counts over every element, the rest over the finite ones; one SUMMARY_DTYPE scalar.

    ``mean = sum(x) / n`` and ``l2_norm = sqrt(sum(x^2))`` over the n finite elements, summed in float64.
    Integers count by value (64-bit ones rounded to float64), bool as 0 and 1. Complex: `numel` counts
    complex elements, everything else is over their 2 numel real and imaginary parts.

    No finite element (or none at all): minimum, maximum, mean and l2_norm are NaN. No nonzero finite element:
    smallest_nonzero is NaN. Zeros of either sign are zero; minimum and maximum are never -0. l2_norm of
    float64 values beyond 1e154 is infinite, and below 1e-154 it loses them: squares are not rescaled.
    """
    entry = dtype_of(array, dtype)
    parts, entry = real_view(array, entry)
    values = float64_from_array(parts, entry.name).ravel()
    finite = values[np.isfinite(values)]
    out = empty_summary()
    out["flags"] = HAS_STATISTICS
    out["numel"] = array.size
    out["num_nan"] = np.count_nonzero(np.isnan(values))
    out["num_posinf"] = np.count_nonzero(values == np.inf)
    out["num_neginf"] = np.count_nonzero(values == -np.inf)
    out["num_zero"] = np.count_nonzero(values == 0)
    if finite.size:
        with np.errstate(over="ignore", invalid="ignore"):
            out["minimum"], out["maximum"] = finite.min() + 0.0, finite.max() + 0.0
            out["mean"], out["l2_norm"] = finite.mean(), np.sqrt(np.square(finite).sum())
    magnitudes = np.abs(finite[finite != 0])
    if magnitudes.size:
        out["smallest_nonzero"] = magnitudes.min()
    return out


def empty_summary() -> np.void:
    """A summary of nothing: counts 0, numbers NaN, no flag set."""
    out = np.zeros((), SUMMARY_DTYPE)
    for name in ("minimum", "maximum", "mean", "l2_norm", "smallest_nonzero"):
        out[name] = np.nan
    scalar: np.void = out.reshape(1)[0]
    return scalar
