"""What an update of master weights started from: what the update before left, or the copies rounded from it.

``after = start - rate * d - pull * start``, where d is m / sqrt(v) of Adam or the momentum buffer, and
``start = before + k * (copy - before)``: k is 0 where masters are kept, 1 where they are made anew from the
copies (less the weight decay of one step). Least squares gives k with its error; bias correction only changes
the rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.diagnosing.optimizer_fit import FittedConstant
from trueup.diagnosing.thresholds import EPS_FEWEST, START_ABOVE_EPS, START_ERRORS, START_NEAR
from trueup.types.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterUpdate:
    """Flat arrays of one parameter, in the order of its elements."""

    before: Floats
    """the master weight after the update before"""
    copy: Floats
    """what the model computes with at the start of this step"""
    after: Floats
    """the master weight after this step's update"""
    direction: Floats
    steady: NDArray[np.bool_]
    """true where the direction does not depend on the optimizer's eps"""


def adam_direction(
    first: Floats, second: Floats, eps: float = 0.0, beta2: float = 0.0
) -> tuple[Floats, NDArray[np.bool_]]:
    """m / sqrt(v), and which half of the elements eps touches least: none that a known eps moves by more than
    a thousandth, in a first step, when bias correction takes ``1 - beta2`` out of v."""
    root = np.sqrt(np.maximum(second, 0))
    known = root[root > 0]
    steady = root >= (np.median(known) if known.size else np.inf)
    steady &= root >= START_ABOVE_EPS * eps * np.sqrt(1 - beta2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(steady, first / root, 0.0), steady


def start_of(update: MasterUpdate) -> FittedConstant | None:
    """k of the update; None where copies are the masters, or too few elements tell."""
    keep = update.steady
    if keep.sum() < EPS_FEWEST:
        return None
    before = update.before[keep]
    rounding, moved = update.copy[keep] - before, update.after[keep] - before
    known = np.stack([update.direction[keep], before], 1)
    if not all(np.isfinite(one).all() for one in (known, rounding, moved)):
        return None
    rounding, moved = _beside(known, rounding), _beside(known, moved)
    square = float(rounding @ rounding)
    if not square:
        return None
    value = float(rounding @ moved) / square
    left = float(np.linalg.norm(moved - value * rounding))
    spread = left / float(np.sqrt(max(keep.sum() - 3, 1)))
    return FittedConstant(value=value, error=spread / float(np.sqrt(square)))


def start_apart(copy: Floats, after: Floats, direction: Floats, steady: NDArray[np.bool_]) -> float | None:
    """How far from the copy the update began, relative to it: what neither the update's direction nor a decay
    of the copy explains. None where too few elements tell."""
    if not copy.shape == after.shape == direction.shape or steady.sum() < EPS_FEWEST:
        return None
    held, moved = copy[steady], (after - copy)[steady]
    known = np.stack([direction[steady], held], 1)
    size = float(np.linalg.norm(held))
    if not size or not np.isfinite(known).all() or not np.isfinite(moved).all():
        return None
    return float(np.linalg.norm(_beside(known, moved))) / size


def _beside(known: Floats, values: Floats) -> Floats:
    """What the columns do not explain."""
    solved, *_ = np.linalg.lstsq(known, values, rcond=None)
    return np.asarray(values - known @ solved)


def is_at(k: FittedConstant, place: float) -> bool:
    """Whether k is that number, and not another that its error allows."""
    return abs(k.value - place) + START_ERRORS * k.error < START_NEAR
