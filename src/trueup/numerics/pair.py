"""The metrics of two stored tensors, element by element, and their definition in float64.

Works straight on raw memory: a memory-mapped file is read once, in cache-sized blocks, never copied whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.numerics._native import AVAILABLE, kernels
from trueup.numerics.dtypes import Dtype, dtype_of, float64_from_array, real_view
from trueup.numerics.ulp import ulp_distance
from trueup.types.arrays import Array

PAIR_DTYPE = np.dtype(
    [
        ("numel", "<i8"),
        ("num_compared", "<i8"),
        ("num_above", "<i8"),
        ("num_bits_different", "<i8"),
        ("num_nonfinite_mismatch", "<i8"),
        ("argmax", "<i8"),
        ("max_ulp_diff", "<u8"),
        ("max_abs_diff", "<f8"),
        ("max_rel_diff", "<f8"),
        ("sum_abs_diff", "<f8"),
        ("sum_sq_diff", "<f8"),
        ("sum_sq_actual", "<f8"),
        ("sum_sq_expected", "<f8"),
        ("dot", "<f8"),
        ("num_over_thousandth", "<i8"),
        ("num_over_five_thousandths", "<i8"),
    ]
)
"""What one pass over two buffers gathers. It adds: two parts of a tensor can be passed over separately."""

_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PairMetrics:
    """How far `actual` (a) is from `expected` (b), over the elements where both are finite.

    Attributes:
        numel: elements of each; parts, for complex tensors, as everywhere below.
        num_compared: of those, both finite.
        max_abs_diff: ``max |a - b|``; None when nothing was compared.
        mean_abs_diff: ``sum |a - b| / num_compared``; None when nothing was compared.
        max_rel_diff: ``max |a - b| / |b|`` over b != 0; None when nothing was compared.
        rel_l2: ``||a - b|| / ||b||``; 0 when equal, infinite when only b is zero; None when nothing was
            compared.
        cosine_similarity: ``<a, b> / (||a|| ||b||)``; 1 when both are zero, 0 when one is.
        max_ulp_diff: most values of the dtype that lie between a and b; None across dtypes.
        fraction_above: share of `num_compared` with ``|a - b| > atol + rtol |b|``.
        fraction_within_thousandth: share of `num_compared` with ``|a - b| <= 0.001 |b|``.
        fraction_within_five_thousandths: the same with 0.005.
        scale: least-squares ``<a, b> / <b, b>``; None when b is zero.
        residual: ``||a - scale b|| / ||a||``, what no scale explains; None when a or b is zero.
        num_bits_different: elements whose raw bits differ; across dtypes, whose values do.
        num_nonfinite_mismatch: not both finite, and not both NaN, +inf or -inf either.
        argmax: row-major index of `max_abs_diff` (of the element, for complex); None when nothing was
            compared.
    """

    numel: int
    num_compared: int
    max_abs_diff: float | None
    mean_abs_diff: float | None
    max_rel_diff: float | None
    rel_l2: float | None
    cosine_similarity: float | None
    max_ulp_diff: int | None
    fraction_above: float | None
    fraction_within_thousandth: float | None
    fraction_within_five_thousandths: float | None
    scale: float | None
    residual: float | None
    num_bits_different: int
    num_nonfinite_mismatch: int
    argmax: int | None


def compare_pair(
    actual: Array,
    expected: Array,
    actual_dtype: str | None = None,
    expected_dtype: str | None = None,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> PairMetrics:
    """Metrics of two tensors of the same number of elements, in row-major order, in one pass.

    Args:
        actual: values; bfloat16 as uint16 and fp8 as uint8, named by `actual_dtype`. Any layout, best
            contiguous.
        expected: the same.
        actual_dtype: element type by name; the array's own by default.
        expected_dtype: the same for `expected`; it may be another type.
        rtol: relative part of the tolerance of `fraction_above`.
        atol: its absolute part.

    Sums are float64; 64-bit integers are rounded to float64 except in `max_ulp_diff`.

    Raises:
        ValueError: other numbers of elements, an unsupported dtype, or real against complex.

    Example:
        >>> compare_pair(np.array([1.0, 2.5]), np.array([1.0, 2.0])).max_abs_diff
        0.5
    """
    entries = dtype_of(actual, actual_dtype), dtype_of(expected, expected_dtype)
    if actual.size != expected.size:
        raise ValueError(f"{actual.size} elements against {expected.size}")
    if (entries[0].kind == "complex") != (entries[1].kind == "complex"):
        raise ValueError(f"cannot compare {entries[0].name} with {entries[1].name}")
    is_complex = entries[0].kind == "complex"
    a, entry_a = real_view(np.ascontiguousarray(actual), entries[0])
    b, entry_b = real_view(np.ascontiguousarray(expected), entries[1])
    if AVAILABLE:
        sums = _sums_by_kernel(a, b, entry_a, entry_b, rtol, atol)
    else:
        sums = sums_by_definition(a, b, entry_a, entry_b, rtol, atol)
    return metrics_from_sums(sums, same_dtype=entry_a == entry_b, is_complex=is_complex)


def _sums_by_kernel(
    a: Array, b: Array, entry_a: Dtype, entry_b: Dtype, rtol: float, atol: float
) -> NDArray[np.void]:
    out = np.empty((), PAIR_DTYPE)
    kernels.compare_pair(
        a.ctypes.data, b.ctypes.data, a.size, entry_a.code, entry_b.code, rtol, atol, out.ctypes.data
    )
    return out


def sums_by_definition(
    a: Array, b: Array, entry_a: Dtype, entry_b: Dtype, rtol: float, atol: float
) -> NDArray[np.void]:
    """The definition of PAIR_DTYPE for real arrays, a million elements at a time."""
    out = np.zeros((), PAIR_DTYPE)
    out["numel"], out["argmax"] = a.size, -1
    a, b = a.reshape(-1), b.reshape(-1)
    for start in range(0, a.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        with np.errstate(over="ignore", invalid="ignore"):
            _add_block(out, a[part], b[part], entry_a, entry_b, rtol, atol, start)
    return out


def _add_block(
    out: NDArray[np.void],
    a: Array,
    b: Array,
    entry_a: Dtype,
    entry_b: Dtype,
    rtol: float,
    atol: float,
    start: int,
) -> None:
    x, y = float64_from_array(a, entry_a.name), float64_from_array(b, entry_b.name)
    both = np.isfinite(x) & np.isfinite(y)
    alike = (x == y) | (np.isnan(x) & np.isnan(y))
    out["num_compared"] += np.count_nonzero(both)
    out["num_nonfinite_mismatch"] += np.count_nonzero(~both & ~alike)
    if entry_a == entry_b:
        unsigned = np.dtype(f"u{entry_a.itemsize}")
        out["num_bits_different"] += np.count_nonzero(a.view(unsigned) != b.view(unsigned))
        distance = ulp_distance(a[both], b[both], entry_a.name)
        out["max_ulp_diff"] = max(int(out["max_ulp_diff"]), int(distance.max(initial=0)))
    else:
        out["num_bits_different"] += np.count_nonzero(~alike)
    x, y = np.where(both, x, 0.0), np.where(both, y, 0.0)
    diff = np.abs(x - y)
    out["num_above"] += np.count_nonzero(diff > atol + rtol * np.abs(y))
    out["num_over_thousandth"] += np.count_nonzero(diff > 0.001 * np.abs(y))
    out["num_over_five_thousandths"] += np.count_nonzero(diff > 0.005 * np.abs(y))
    nonzero = y != 0
    out["max_rel_diff"] = max(
        float(out["max_rel_diff"]), float((diff[nonzero] / np.abs(y[nonzero])).max(initial=0.0))
    )
    out["sum_abs_diff"] += diff.sum()
    out["sum_sq_diff"] += np.square(diff).sum()
    out["sum_sq_actual"] += np.square(x).sum()
    out["sum_sq_expected"] += np.square(y).sum()
    out["dot"] += (x * y).sum()
    if both.any():
        place = int(np.argmax(np.where(both, diff, -1.0)))
        if int(out["argmax"]) < 0 or diff[place] > out["max_abs_diff"]:
            out["max_abs_diff"], out["argmax"] = diff[place], start + place


def metrics_from_sums(sums: NDArray[np.void], *, same_dtype: bool, is_complex: bool) -> PairMetrics:
    """What the gathered sums of one PAIR_DTYPE scalar say."""
    get = {name: sums[name].item() for name in PAIR_DTYPE.names or ()}
    compared = get["num_compared"]
    some = compared > 0
    aa, bb, ab, dd = get["sum_sq_actual"], get["sum_sq_expected"], get["dot"], get["sum_sq_diff"]
    scale = ab / bb if bb > 0 else None
    residual = None
    if scale is not None and aa > 0:
        # ||a - s b||^2 = ||a - b||^2 - (1 - s)^2 ||b||^2 = ||a||^2 - s <a, b>: where less is taken away, less
        # is lost; the first is exact where s is near 1, the second where s is small
        taken = (1 - scale) ** 2 * bb
        rest = dd - taken if taken < scale * ab else aa - scale * ab
        residual = float(np.sqrt(max(rest, 0.0) / aa))
    return PairMetrics(
        numel=get["numel"],
        num_compared=compared,
        max_abs_diff=get["max_abs_diff"] if some else None,
        mean_abs_diff=get["sum_abs_diff"] / compared if some else None,
        max_rel_diff=get["max_rel_diff"] if some else None,
        rel_l2=_ratio(dd, bb) if some else None,
        cosine_similarity=_cosine(aa, bb, ab) if some else None,
        max_ulp_diff=get["max_ulp_diff"] if some and same_dtype else None,
        fraction_above=get["num_above"] / compared if some else None,
        fraction_within_thousandth=1 - get["num_over_thousandth"] / compared if some else None,
        fraction_within_five_thousandths=1 - get["num_over_five_thousandths"] / compared if some else None,
        scale=scale,
        residual=residual,
        num_bits_different=get["num_bits_different"],
        num_nonfinite_mismatch=get["num_nonfinite_mismatch"],
        argmax=get["argmax"] // (2 if is_complex else 1) if some else None,
    )


def _ratio(sum_sq_diff: float, sum_sq_expected: float) -> float:
    if sum_sq_diff == 0:
        return 0.0
    return float(np.sqrt(sum_sq_diff / sum_sq_expected)) if sum_sq_expected > 0 else float("inf")


def _cosine(aa: float, bb: float, ab: float) -> float:
    if aa == 0 or bb == 0:
        return 1.0 if aa == bb else 0.0
    return min(1.0, max(-1.0, ab / (float(np.sqrt(aa)) * float(np.sqrt(bb)))))
