"""How well a hypothesis explains a difference, in one measure for all kinds.

A hypothesis predicts the target from the reference. Its residual ``||t - prediction||`` is held against the
difference ``||t - r||`` it sets out to explain; what one rounding of either side may leave is not counted
against it. A fit with a free factor must also stand clear of chance: ``z`` is how many standard errors its
effect is from none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trueup.diagnosing.evidence import Evidence, Vectors
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.thresholds import (
    CERTAIN_Z,
    CLOSE_ROUNDINGS,
    COARSE_ROUNDOFF,
    FACTOR_ROWS,
    FEW_NUMBERS,
    FINEST_ROUNDOFF,
    FULL_SHARE,
    HIDDEN_SHARE,
    MANY_NUMBERS,
    MOST_SHARE,
    ROUNDED_SHARE,
    SIGNIFICANT_Z,
    SOME_SHARE,
)
from trueup.types.arrays import Bools, Floats
from trueup.types.finding import EvidenceRank


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorFit:
    """``t - r = factor * x`` as well as it can be had."""

    factor: float
    residual: float
    """``||t - r - factor x||``"""
    z: float


def fit(difference: Floats, direction: Floats) -> FactorFit | None:
    """Least squares with one factor; None where the direction is zero or not finite."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        square = float(np.dot(direction, direction))
        if not np.isfinite(square) or square == 0:
            return None
        factor = float(np.dot(difference, direction)) / square
        residual = length(difference - factor * direction)
        if not np.isfinite(residual):
            return None
        effect = abs(factor) * np.sqrt(square)
        z = effect * np.sqrt(len(difference)) / residual if residual > 0 else np.inf if effect > 0 else 0.0
    return FactorFit(factor=factor, residual=residual, z=float(z))


def explained(evidence: Evidence, vectors: Vectors, residual: float, *, z: float = np.inf) -> float:
    """Share of the difference a hypothesis accounts for, 0 to 1.

    ``1 - sqrt(max(residual^2 - floor^2, 0)) / difference``, floor = the larger of a rounding and of the
    origin's tolerance, but at most ``ROUNDED_SHARE`` of the difference. A residual no larger than two
    roundings beside an effect of ``z`` well over chance counts as whole, for any difference: a scale of
    1.002 in bfloat16 hides below the rounding and is certain all the same.

    A target smaller than the reference and the difference is held against itself: that it is nearly zero
    explains the difference, and says nothing of what it is. No hypothesis explains what is NaN or infinite
    on one side alone.
    """
    if vectors.difference == 0 or not np.isfinite(residual) or not np.isfinite(vectors.difference):
        return 0.0
    if z < SIGNIFICANT_Z:
        return 0.0
    relative = max(vectors.rounding, evidence.origin.tolerance or 0.0)
    share = _share(residual, vectors.difference, relative * vectors.norm)
    coarse = vectors.rounding >= COARSE_ROUNDOFF
    if (
        coarse
        and np.isfinite(z)
        and residual <= 2 * vectors.rounding * max(vectors.norm, vectors.target_norm)
    ):
        above = (z - SIGNIFICANT_Z) / (CERTAIN_Z - SIGNIFICANT_Z)
        share = max(share, min(1.0, HIDDEN_SHARE + (1.0 - HIDDEN_SHARE) * above))
    if 0 < vectors.target_norm < min(vectors.norm, vectors.difference):
        share = min(share, _share(residual, vectors.target_norm, relative * vectors.target_norm))
    return min(share, 1.0 - vectors.one_sided)


def _share(residual: float, whole: float, allowed: float) -> float:
    """Share of a length that a residual leaves, of which so much is allowed."""
    floor = min(allowed, ROUNDED_SHARE * whole)
    left = float(np.sqrt(max(residual - floor, 0.0)) * np.sqrt(residual + floor))
    return max(0.0, 1.0 - left / whole)


def holds_everywhere(evidence: Evidence, direction: Floats, factor: float) -> bool:
    """Whether t - r is the same multiple of a direction wherever it is looked at; True where values are not
    known.

    Two functions that nearly agree, or one row of a batch that is weighed otherwise, give the whole some
    factor too, and with many numbers it is far beyond its standard error. But then small and large numbers,
    positive and negative ones, or single rows have factors of their own. That of a part p has the standard
    error rms(residual_p) / ||x_p||; one more than ``SIGNIFICANT_Z`` of those away, and by more than what a
    whole explanation may leave, is another.
    """
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or direction.size != r.size:
        return True
    x, usable = direction.reshape(r.shape), np.isfinite(t) & np.isfinite(r)
    for part in _parts(np.where(usable, r, 0.0)):
        chosen = part & usable
        if chosen.sum() < MANY_NUMBERS:
            continue
        difference, along = t[chosen] - r[chosen], x[chosen]
        own = fit(difference, along)
        if own is None:
            continue
        error = own.residual / np.sqrt(len(along)) / length(along)
        if abs(own.factor - factor) > max(SIGNIFICANT_Z * error, (1.0 - FULL_SHARE) * abs(factor)):
            return False
    return True


def _parts(r: Floats) -> Iterator[Bools]:
    """The smaller and the larger half of the numbers, of either sign; then the rows."""
    size = np.abs(r)
    middle = np.median(size[size > 0]) if size.any() else 0.0
    for half in (size <= middle, size > middle):
        for sign in (1.0, -1.0):
            yield half & (np.sign(r) == sign)
    if r.ndim > 1 and len(r) <= FACTOR_ROWS:
        for row in range(len(r)):
            part = np.zeros(r.shape, dtype=bool)
            part[row] = True
            yield part


def rank_of(
    share: float, vectors: Vectors | None = None, *, least: float = SOME_SHARE
) -> EvidenceRank | None:
    """What a share of the difference amounts to; None below ``least``. Sketches prove less than values, a
    handful of numbers less than many."""
    if share < least:
        return None
    if vectors is not None and vectors.size < FEW_NUMBERS:
        return EvidenceRank.GUESS if vectors.size == 1 else EvidenceRank.CONSISTENT
    if share < FULL_SHARE:
        return EvidenceRank.MOST if share >= MOST_SHARE else EvidenceRank.SOME
    return EvidenceRank.EVERY_ELEMENT if vectors is None or vectors.exact else EvidenceRank.SKETCH


def at_most(rank: EvidenceRank, other: EvidenceRank) -> EvidenceRank:
    """The weaker of the two."""
    return max(rank, other, key=lambda one: one.place)


def close(actual: Floats, expected: Floats, rounding: float) -> Bools:
    """Elements equal but for a few roundings; NaN equals NaN and an infinity itself."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(actual - expected)
        near = apart <= CLOSE_ROUNDINGS * rounding * np.maximum(np.abs(actual), np.abs(expected))
        near &= apart < np.inf
    return np.asarray(near | (actual == expected) | (np.isnan(actual) & np.isnan(expected)))


def roundoff_of(evidence: Evidence) -> float:
    """Unit roundoff of the coarser side, of exact dtypes that of what they are worked out in."""
    return max(evidence.roundoff, FINEST_ROUNDOFF)
