"""Two tensors as flat vectors: their values, or their sketches where values were not stored.

Sketches are linear and keep norms, so a linear hypothesis (t = a r, t = r + x, sum over ranks = r) is tested
on either in the same way; only the number of independent numbers differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.diagnosing.evidence.facts import Known
from trueup.types.arrays import Floats

SKETCH_ROUNDING = 3e-7
"""Sketches are kept as float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """Target and reference in one form; places that are not finite on both sides are left out."""

    target: Floats
    reference: Floats
    exact: bool
    """values; else sketches"""
    difference: float
    """``||t - r||``"""
    norm: float
    """``||r||``"""
    target_norm: float
    rounding: float
    """relative size of one rounding of either side"""
    num_values: int
    """elements of the tensors"""
    one_sided: float
    """share of the elements that are NaN or infinite on one side alone, or otherwise: no vector holds them"""
    like: Callable[[Known | None], Floats | None]
    """another tensor of the same shape in the same form, None where it cannot be had"""

    @property
    def size(self) -> int:
        """Independent numbers that a fit rests on."""
        return len(self.target)

    @property
    def rel(self) -> float:
        """``||t - r|| / ||r||``; infinite where only the reference is zero, and where something is NaN or
        infinite on one side alone."""
        if self.one_sided:
            return float("inf")
        if self.norm > 0:
            return self.difference / self.norm
        return float("inf") if self.difference > 0 else 0.0


def vectors_of(
    target: Known | None,
    reference: Known | None,
    values: Callable[[Known | None], Floats | None],
    rounding: float,
) -> Vectors | None:
    """Both tensors in the strongest form that both have; None where shapes differ or nothing is known.

    NaN, infinities and empty tensors leave a vector of what is finite on both sides, or None where nothing
    is.
    """
    if target is None or reference is None or target.shape != reference.shape or target.numel == 0:
        return None
    a, b = values(target), values(reference)
    if a is not None and b is not None and a.shape == b.shape:
        return _from_values(target, a.ravel(), b.ravel(), values, rounding)
    if target.sketch is None or reference.sketch is None:
        return None
    if not (np.isfinite(target.sketch).all() and np.isfinite(reference.sketch).all()):
        return None

    def like(other: Known | None) -> Floats | None:
        if other is None or other.shape != target.shape or other.sketch is None:
            return None
        return other.sketch if np.isfinite(other.sketch).all() else None

    rounding, one_sided = max(rounding, SKETCH_ROUNDING), _counted_apart(target, reference)
    return _vectors(target.sketch, reference.sketch, False, rounding, target.numel, one_sided, like)


def _counted_apart(target: Known, reference: Known) -> float:
    """Share of the elements that are NaN or infinite on one side alone, as far as counts tell: sketches leave
    them out on each side."""
    names = ("num_nan", "num_posinf", "num_neginf")
    counts = (np.nan_to_num([known.statistic(name) for name in names]) for known in (target, reference))
    return float(np.abs(np.subtract(*counts)).max()) / target.numel


def _from_values(
    target: Known, a: Floats, b: Floats, values: Callable[[Known | None], Floats | None], rounding: float
) -> Vectors | None:
    finite = np.isfinite(a) & np.isfinite(b)
    keep: NDArray[np.bool_] | None = None if finite.all() else finite
    one_sided = 0.0
    if keep is not None:
        one_sided = float((~(finite | (a == b) | (np.isnan(a) & np.isnan(b)))).mean())
        a, b = a[keep], b[keep]
        if not len(a):
            return None

    def like(other: Known | None) -> Floats | None:
        if other is None or other.shape != target.shape:
            return None
        found = values(other)
        if found is None:
            return None
        flat = found.ravel()
        flat = flat if keep is None else flat[keep]
        return np.where(np.isfinite(flat), flat, 0.0) if not np.isfinite(flat).all() else flat

    return _vectors(a, b, True, rounding, target.numel, one_sided, like)


def _vectors(
    a: Floats,
    b: Floats,
    exact: bool,
    rounding: float,
    num_values: int,
    one_sided: float,
    like: Callable[[Known | None], Floats | None],
) -> Vectors:
    with np.errstate(over="ignore", invalid="ignore"):
        return Vectors(
            target=a,
            reference=b,
            exact=exact,
            difference=length(a - b),
            norm=length(b),
            target_norm=length(a),
            rounding=rounding,
            num_values=num_values,
            one_sided=one_sided,
            like=like,
        )


def length(vector: Floats) -> float:
    """Euclidean norm, without overflow."""
    largest = float(np.abs(vector).max(initial=0.0))
    if not np.isfinite(largest) or largest == 0:
        return largest
    if 1e-140 < largest < 1e140:
        return float(np.sqrt(np.dot(vector, vector)))
    return largest * float(np.linalg.norm(vector / largest))
