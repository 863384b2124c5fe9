"""Summaries of parts to the summary of the whole, without values where that can be.

Disjoint parts: counts and squared norms add, extremes are those of all, the digest of a part that starts at
offset o counts ``h prod_d g_d^(o_d)`` (``numerics.digest``), sketches taken at their place add. Terms of a
sum: sketches and means add, nothing else is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.numerics._native import summarise_array
from trueup.numerics.digest import MASK, rebase
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS
from trueup.types.arrays import Array

COUNTS = ("num_nan", "num_posinf", "num_neginf", "num_zero")
STATISTICS = (*COUNTS, "minimum", "maximum", "mean", "l2_norm", "smallest_nonzero")
Sketch = NDArray[np.float64]


@dataclass(slots=True)
class Summary:
    """What is known of a tensor; None where something is not."""

    dtype: str
    shape: tuple[int, ...]
    numel: int
    num_nan: int | None = None
    num_posinf: int | None = None
    num_neginf: int | None = None
    num_zero: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    l2_norm: float | None = None
    smallest_nonzero: float | None = None
    digest: int | None = None
    sketch: Sketch | None = None

    @property
    def num_finite(self) -> int | None:
        """Elements that the statistics are over."""
        if self.num_nan is None or self.num_posinf is None or self.num_neginf is None:
            return None
        return self.numel - self.num_nan - self.num_posinf - self.num_neginf


# In one piece: one branch a statistic, each with its own rule for what is missing.
def joined(
    parts: Sequence[Summary], shape: tuple[int, ...], starts: Sequence[int] | None, dim: int
) -> Summary:
    """The whole of disjoint parts.

    Args:
        parts: in any order.
        shape: of the whole.
        starts: where along ``dim`` each begins; None where one is in several pieces or nothing is known.
        dim: that is cut.
    """
    whole = Summary(parts[0].dtype, shape, sum(part.numel for part in parts))
    for name in COUNTS:
        counts = [getattr(part, name) for part in parts]
        setattr(whole, name, None if None in counts else sum(counts))
    if whole.num_finite is not None:
        some = [part for part in parts if part.num_finite]
        if some and all(part.mean is not None for part in some):
            total = sum(part.num_finite or 0 for part in some)
            whole.mean = sum((part.mean or 0.0) * (part.num_finite or 0) for part in some) / total
        if some and all(part.l2_norm is not None for part in some):
            _statistics(whole, some)
    if starts is not None and all(part.digest is not None for part in parts):
        offset = [0] * len(shape)
        total = 0
        for part, start in zip(parts, starts, strict=True):
            offset[dim] = start
            total += rebase(part.digest or 0, offset)
        whole.digest = total & MASK
    whole.sketch = _added([part.sketch for part in parts], 1.0)
    return whole


def _statistics(whole: Summary, some: Sequence[Summary]) -> None:
    whole.minimum = min((p.minimum for p in some if p.minimum is not None), default=None)
    whole.maximum = max((p.maximum for p in some if p.maximum is not None), default=None)
    whole.smallest_nonzero = min(
        (p.smallest_nonzero for p in some if p.smallest_nonzero is not None), default=None
    )
    whole.l2_norm = math.sqrt(sum((p.l2_norm or 0.0) ** 2 for p in some))


def summed(parts: Sequence[Summary], factor: float) -> Summary:
    """The sum of terms of one shape, times ``factor``: only what is linear."""
    whole = Summary(parts[0].dtype, parts[0].shape, parts[0].numel)
    if all(part.num_finite == part.numel and part.mean is not None for part in parts):
        whole.mean = factor * sum(part.mean or 0.0 for part in parts)
        whole.num_nan = whole.num_posinf = whole.num_neginf = 0
    whole.sketch = _added([part.sketch for part in parts], factor)
    return whole


def _added(sketches: Sequence[Sketch | None], factor: float) -> Sketch | None:
    total: Sketch | None = None
    for one in sketches:
        if one is None:
            return None
        total = one if total is None else total + one
    return None if total is None else total * factor


def summary_of_values(values: Array, dtype: str) -> Summary:
    """Everything, from the values; bfloat16 and float8 as their bits."""
    row = summarise_array(values, HAS_STATISTICS | HAS_DIGEST | HAS_SKETCH, dtype)
    found = Summary(dtype, tuple(values.shape), int(row["numel"]))
    for name in STATISTICS:
        number = row[name]
        known = name in COUNTS or not math.isnan(float(number))
        setattr(found, name, (int(number) if name in COUNTS else float(number)) if known else None)
    found.digest, found.sketch = int(row["digest"]), np.asarray(row["sketch"], np.float64)
    return found
