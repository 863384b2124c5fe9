"""Differences of two columns of summaries, a row a pair: arrays in, arrays out, missing numbers as NaN.

Every difference is relative to a size of the reference that cannot vanish by cancellation: means and
extremes to its root mean square ``rms = l2_norm / sqrt(numel)``, never to a mean that is nearly zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.types.arrays import Array

Column = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class StatisticsMetrics:
    """One array entry a pair (t the target, r the reference); NaN where either number is missing.

    Attributes:
        l2_rel_diff: ``|l2_t - l2_r| / l2_r``.
        min_rel_diff: ``|min_t - min_r| / rms_r``.
        max_rel_diff: ``|max_t - max_r| / rms_r``.
        mean_rel_diff: ``|mean_t - mean_r| / rms_r``.
        rel_l2_lower_bound: the least ``||t - r|| / ||r||`` that l2 norms and means allow:
            ``max(l2_rel_diff, mean_rel_diff)``.
    """

    l2_rel_diff: Column
    min_rel_diff: Column
    max_rel_diff: Column
    mean_rel_diff: Column
    rel_l2_lower_bound: Column


def rel_diff(actual: Column, expected: Column, size: Column) -> Column:
    """``|actual - expected| / size``; 0 where equal, infinite where only `size` is 0, else NaN for a NaN.

    Example:
        >>> rel_diff(np.array([1.5, 0.0]), np.array([1.0, 0.0]), np.array([2.0, 0.0]))
        array([0.25, 0.  ])
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        result: Column = np.where(
            (actual == expected) & ~np.isnan(size), 0.0, np.abs(actual - expected) / size
        )
    return result


def root_mean_square(l2_norm: Column, numel: Column) -> Column:
    """``l2_norm / sqrt(numel)``; NaN for empty tensors."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Column = np.where(numel > 0, l2_norm / np.sqrt(numel), np.nan)
    return result


def metrics_from_statistics(target: Array, reference: Array) -> StatisticsMetrics:
    """Metrics of two arrays of summaries, row against row.

    Args:
        target: structured array with at least the fields `numel`, `minimum`, `maximum`, `mean` and `l2_norm`
            of SUMMARY_DTYPE, (N,).
        reference: the same.

    Lower bounds hold only where no element is non-finite on either side and both have the same `numel`;
    elsewhere the bound is NaN. (They follow from ``| ||t|| - ||r|| | <= ||t - r||`` and ``sqrt(n) |mean(t -
    r)| <= ||t - r||``.) Summaries of complex tensors describe 2 numel parts: their rms here is larger by
    sqrt(2).
    """
    count = _column(reference, "numel")
    norm = _column(reference, "l2_norm")
    rms = root_mean_square(norm, count)
    diffs = {
        name: rel_diff(_column(target, name), _column(reference, name), rms)
        for name in ("minimum", "maximum", "mean")
    }
    l2 = rel_diff(_column(target, "l2_norm"), norm, norm)
    sound = _all_finite(target) & _all_finite(reference) & (_column(target, "numel") == count)
    bound = np.where(sound, np.fmax(l2, diffs["mean"]), np.nan)
    return StatisticsMetrics(
        l2_rel_diff=l2,
        min_rel_diff=diffs["minimum"],
        max_rel_diff=diffs["maximum"],
        mean_rel_diff=diffs["mean"],
        rel_l2_lower_bound=bound,
    )


def _column(rows: Array, name: str) -> Column:
    return np.asarray(rows[name], np.float64)


def _all_finite(rows: Array) -> NDArray[np.bool_]:
    names = [name for name in ("num_nan", "num_posinf", "num_neginf") if name in (rows.dtype.names or ())]
    result = np.ones(rows.shape, np.bool_)
    for name in names:
        result &= rows[name] == 0
    return result
