"""How far a tensor of a replay is from the reference's, from their values."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from trueup.adapters.forcing_plan import HostValues
from trueup.numerics.dtypes import DTYPES, float64_from_array
from trueup.numerics.hidden import in_common_form
from trueup.numerics.pair import PairMetrics, compare_pair
from trueup.types.arrays import Array

MIN_ELEMENTS = 16
"""fewer say nothing of a scale"""


class MeasuredRecord(NamedTuple):
    """The numbers of one row of ``forced.parquet``, in its order."""

    difference: float | None
    """``||t - r||``; infinite where one side holds a NaN or infinity that the other has not"""
    norm: float | None
    scale: float | None
    residual: float | None
    """``||t - a r|| / ||t||``, a the scale"""
    max_abs_diff: float | None
    max_ulp_diff: int | None
    bias_z: float | None


NOTHING = MeasuredRecord(None, None, None, None, None, None, None)


def measured(actual: HostValues, expected: HostValues, norm: float | None) -> MeasuredRecord:
    """Metrics of two tensors of one shape, whose dtypes may differ; ``norm`` is that of the reference."""
    names = [actual.dtype, expected.dtype]
    if not actual.data.size or any(name not in DTYPES for name in names):
        return NOTHING
    arrays = [side.data.view(np.dtype(DTYPES[side.dtype].storage)) for side in (actual, expected)]
    if "complex" in {DTYPES[name].kind for name in names} and names[0] != names[1]:
        return NOTHING
    masks = in_common_form(arrays[0], names[0], arrays[1], names[1])
    if masks is not None:
        (arrays[0], arrays[1]), names = masks, ["float64", "float64"]
        norm = float(np.sqrt(np.square(masks[1][np.isfinite(masks[1])]).sum()))
    found = compare_pair(arrays[0], arrays[1], *names)
    ulp = None if found.max_ulp_diff is None else min(found.max_ulp_diff, 2**63 - 1)
    if found.num_nonfinite_mismatch:
        return MeasuredRecord(math.inf, norm, found.scale, found.residual, found.max_abs_diff, ulp, None)
    return MeasuredRecord(
        _difference(found, arrays[0], names[0], norm),
        norm,
        found.scale,
        found.residual,
        found.max_abs_diff,
        ulp,
        _bias(found, arrays[1], names[1]) if DTYPES[names[1]].kind == "float" else None,
    )


def _difference(found: PairMetrics, actual: Array, name: str, norm: float | None) -> float | None:
    if found.rel_l2 is None or norm is None:
        return None
    if math.isinf(found.rel_l2) or norm == 0:  # nothing but zeros in the reference
        values = float64_from_array(actual, name)
        return float(np.sqrt(np.square(values[np.isfinite(values)]).sum()))
    return found.rel_l2 * norm


def _bias(found: PairMetrics, expected: Array, name: str) -> float | None:
    """How many standard errors the scale ``a = <t,r>/<r,r>`` is from 1.

    Rounding errors are independent and as large as their element, so that their share of a scatters with
    ``x / sqrt(m)``: ``x = ||t - a r|| / ||r||``, and m the elements that count, ``(sum r^2)^2 / sum r^4``,
    because a few large ones may outweigh all others.
    """
    a, residual = found.scale, found.residual
    if a is None or residual is None or residual >= 1 or found.num_compared < MIN_ELEMENTS:
        return None
    squares = np.square(float64_from_array(expected, name))
    fourth = float(np.dot(squares, squares))
    if not 0 < fourth < math.inf:
        return None
    count = float(squares.sum()) ** 2 / fourth
    if count < MIN_ELEMENTS:
        return None
    spread = residual * abs(a) / math.sqrt(1 - residual**2)
    if spread == 0:
        return 0.0 if a == 1 else math.copysign(math.inf, a - 1)
    return (a - 1) * math.sqrt(count) / spread
