"""What a program averages, by its own numbers: with a and a' the averaged weights before and after a step, w0
and w1 the weights before and after its update,

    a' - a = c1 (w1 - a) + c0 (w0 - a),

over all tensors together, by least squares. c1 = 1 - decay where the weights are averaged after the update,
c0 = 1 - decay where before it, both where a step averages several times. Sketches are linear: where values
are not stored the same holds of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from trueup.comparing.thresholds import AVERAGE_CLEAR, AVERAGE_ROUNDINGS
from trueup.types.arrays import Floats


class AverageForm(str, Enum):
    """Which weights a step averages."""

    AFTER = "after"
    """the update"""
    BEFORE = "before"
    BOTH = "both"
    UNMOVED = "unmoved"
    OPEN = "open"
    """before and after explain it alike, or neither does"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """One tensor of a copy through a step; all of one shape."""

    before: Floats
    after: Floats
    weight: Floats
    """w1"""
    weight_before: Floats | None
    """w0, where it is known"""
    rounding: float
    """what the arithmetic of one average may round a' by, as a length"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageFit:
    """What a step averages."""

    form: AverageForm
    new: float = 0.0
    """c1"""
    old: float = 0.0
    """c0"""
    error: float = 0.0
    """of either, at most"""

    @property
    def decay(self) -> float:
        """What the average keeps of itself."""
        return 1.0 - self.new - self.old


def fit_of(tensors: Iterable[Averaged]) -> AverageFit | None:
    """Fitted over all tensors; None without any."""
    parts = list(tensors)
    if not parts:
        return None
    moved = [one.after - one.before for one in parts]
    new = [one.weight - one.before for one in parts]
    is_known = all(one.weight_before is not None for one in parts)
    old = [one.weight_before - one.before for one in parts if one.weight_before is not None]
    noise = math.hypot(*(one.rounding for one in parts))
    if _length(moved) <= noise:
        is_clear = _length(new) > AVERAGE_CLEAR * noise
        return AverageFit(form=AverageForm.UNMOVED if is_clear else AverageForm.OPEN)
    single = {AverageForm.AFTER: _one(moved, new, noise)}
    if is_known:
        single[AverageForm.BEFORE] = _one(moved, old, noise)
    fitting = {form: one for form, one in single.items() if one is not None and one[1] <= noise}
    if len(fitting) == 1 and is_known:
        form, (share, _, error) = next(iter(fitting.items()))
        shares = {"new": share} if form is AverageForm.AFTER else {"old": share}
        return AverageFit(form=form, error=error, **shares)
    if fitting or not is_known:
        return AverageFit(form=AverageForm.OPEN)
    return _two(moved, new, old, noise)


def _one(moved: list[Floats], of: list[Floats], noise: float) -> tuple[float, float, float] | None:
    """c of y = c x, what is left over, and how far c may be off."""
    square = _product(of, of)
    if not square or math.sqrt(square) <= noise:
        return None
    share = _product(moved, of) / square
    rest = _length([y - share * x for y, x in zip(moved, of, strict=True)])
    return share, rest, noise / math.sqrt(square)


def _two(moved: list[Floats], new: list[Floats], old: list[Floats], noise: float) -> AverageFit:
    gram = np.array(
        [[_product(new, new), _product(new, old)], [_product(new, old), _product(old, old)]], np.float64
    )
    if not np.isfinite(gram).all() or np.linalg.det(gram) <= 0 or _length(old) <= noise:
        return AverageFit(form=AverageForm.OPEN)
    inverse = np.linalg.inv(gram)
    c1, c0 = (inverse @ np.array([_product(moved, new), _product(moved, old)])).tolist()
    rest = _length([y - c1 * a - c0 * b for y, a, b in zip(moved, new, old, strict=True)])
    error = noise * math.sqrt(max(inverse[0, 0], inverse[1, 1]))
    is_clear = min(abs(c1), abs(c0)) > AVERAGE_CLEAR * error
    return (
        AverageFit(form=AverageForm.BOTH, new=c1, old=c0, error=error)
        if rest <= noise and is_clear
        else AverageFit(form=AverageForm.OPEN)
    )


def _product(one: list[Floats], other: list[Floats]) -> float:
    return sum(float(np.vdot(a, b)) for a, b in zip(one, other, strict=True))


def _length(tensors: list[Floats]) -> float:
    return math.sqrt(_product(tensors, tensors))


def decays_differ(one: AverageFit, other: AverageFit) -> bool:
    """Whether two fits of one form keep another share of the average, by more than both may be off."""
    return abs(one.decay - other.decay) > AVERAGE_CLEAR * (one.error + other.error)


def rounding_of(norm: float, roundoff: float) -> float:
    """What one average may round by: d a, (1 - d) w and their sum round each, a difference and its product
    where it is a lerp, the factors themselves."""
    return AVERAGE_ROUNDINGS * roundoff * norm
