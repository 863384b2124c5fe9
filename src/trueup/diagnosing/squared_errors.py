"""What a loss of squares that a program writes itself comes near to.

`(prediction - target) ** 2` keeps its target nowhere. What the loss sends back to the prediction holds it:
of L = c sum e^2 the gradient is g = 2 c e, so that c = sum g^2 / (4 L) whatever the numbers are. A loss of
another form gives some c as well, but no one over a number of elements, of rows or of columns; where it is
one, the target is the prediction less e = g / (2 c).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.thresholds import CLOSE_ROUNDINGS, FLOAT32_ROUNDOFF, NEARLY_ALL
from trueup.matching.codes import Codes
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.arrays import Floats

_HALVES = (1.0, 0.5)
"""a loss of squares, or of half of them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SquaredErrors:
    """A loss of squares of the differences between a prediction and its target."""

    factor: float
    """that multiplies their sum"""
    errors: Floats
    targets: Floats
    rounding: float
    """of the targets, relative to the largest of them"""

    @property
    def rounding_of_each(self) -> float:
        """Of the targets, relative to each of them but the smallest few; half of the digits at most."""
        sizes = np.abs(self.targets)
        largest, small = float(sizes.max()), float(np.quantile(sizes, 1 - NEARLY_ALL))
        most = math.sqrt(self.rounding)
        return min(self.rounding * largest / small, most) if small else most


def squared_errors(
    predicted: Floats,
    sent_back: Floats,
    loss: float,
    rounding: float,
    *,
    of_loss: float = FLOAT32_ROUNDOFF,
    factor: float | None = None,
) -> SquaredErrors | None:
    """The differences behind ``loss``; None where it is no sum of their squares times one over a whole number
    that the shape has.

    Args:
        sent_back: gradient of the loss by ``predicted``, of its shape.
        rounding: unit roundoff of the coarser of the two; those of single gradients average out in a sum.
        of_loss: unit roundoff of the loss.
        factor: by what their sum is multiplied, where the loss is known to have more than squares.
    """
    length = float(np.square(sent_back).sum())
    if predicted.shape != sent_back.shape or not predicted.size or not (math.isfinite(length) and length > 0):
        return None
    if factor is None:
        fitted = length / (4 * loss) if loss > 0 else math.nan
        num = length**2 / float((sent_back**4).sum())  # of gradients that the sum is made of
        near = CLOSE_ROUNDINGS * (rounding / math.sqrt(num) + of_loss)
        factor = next((one for one in _factors(predicted.shape) if abs(fitted / one - 1) <= near), None)
    if factor is None:
        return None
    errors = sent_back / (2 * factor)
    targets = predicted - errors
    largest = float(np.abs(targets).max()) or 1.0
    sizes = max(float(np.abs(errors).max()), float(np.abs(predicted).max())) / largest
    return SquaredErrors(factor=factor, errors=errors, targets=targets, rounding=rounding * max(sizes, 1.0))


def are_averaged(one: SquaredErrors, other: SquaredErrors, loss: float) -> bool:
    """Whether every prediction is held against all targets of ``other``, as a broadcast does: what a squared
    loss then sends back comes from their mean, and to the loss their spread is added. ``one`` is fitted with
    the factor of ``other``."""
    near = CLOSE_ROUNDINGS * max(one.rounding, other.rounding)
    mean, size = float(other.targets.mean()), float(np.abs(other.targets).max())
    total = one.factor * float(np.square(one.errors).sum())
    spread = one.factor * float(np.square(other.targets - mean).sum())
    is_mean = bool((np.abs(one.targets - mean) <= near * size).all())
    return is_mean and spread > near * loss and abs(total + spread - loss) <= near * loss


# In one piece: one condition after the other under which the two losses are squares of one form.
def squares_of(evidence: Evidence, microbatch: int) -> tuple[SquaredErrors, SquaredErrors, str | None] | None:
    """Both runs' squares behind a loss that differs, and the side whose targets are broadcast against all
    predictions; None where either loss is of another form or scaled."""
    runs = evidence.target_run, evidence.reference_run
    known = [one for one in (evidence.target, evidence.reference) if one is not None]
    given = [(run.sent_from.get(microbatch), run.sent_back.get(microbatch)) for run in runs]
    if any(run.loss_scale not in (None, 1.0) for run in runs) or len(known) != len(runs):
        return None
    used = _used([back for _, back in given if back is not None])
    if used is None:
        return None
    sides = [
        (predicted[used], back[used], one.statistic("mean"))
        for (predicted, back), one in zip(given, known, strict=True)
        if predicted is not None and back is not None and predicted.shape == back.shape
    ]
    if len(sides) != len(runs):
        return None
    of_loss = float(np.nanmax(unit_roundoffs([one.dtype for one in known])[:-1]))
    target, reference = (squared_errors(*side, evidence.roundoff, of_loss=of_loss) for side in sides)
    if target is not None and reference is not None:
        return (target, reference, None) if target.factor == reference.factor else None
    if target is None and reference is None:
        return None
    for side, own, other, (predicted, back, loss) in (
        ("target", target, reference, sides[0]),
        ("reference", reference, target, sides[1]),
    ):
        if own is None and other is not None:
            own = squared_errors(predicted, back, loss, evidence.roundoff, factor=other.factor)
            if own is not None and are_averaged(own, other, loss):
                return (own, other, side) if side == "target" else (other, own, side)
    return None


def _used(sent_back: list[Floats]) -> tuple[Codes, ...] | None:
    """The block of a prediction that a gradient comes to in any run: a loss may leave out columns, or
    channels; None where there is none, or shapes differ."""
    if len({one.shape for one in sent_back}) != 1:
        return None
    used = np.logical_or.reduce([one != 0 for one in sent_back])
    axes = range(used.ndim)
    held = [np.flatnonzero(used.any(axis=tuple(n for n in axes if n != axis))) for axis in axes]
    return np.ix_(*held) if all(map(len, held)) else None


def _factors(shape: tuple[int, ...]) -> list[float]:
    """One over all elements, rows, elements of a row, or one; and half of each."""
    size, rows = math.prod(shape), shape[0] if shape else 1
    return [half / number for number in dict.fromkeys((size, rows, size // rows, 1)) for half in _HALVES]
