"""A target's loss that is the reference's times one number at every step: another reduction, unit or sign."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from trueup.curves.thresholds import FACTOR_BETTER, FACTOR_FEWEST, MEAN_REL
from trueup.types.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """``target = factor * reference``."""

    factor: float
    residual: float
    """mean |target - factor * reference|, of the size of the second"""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def factor(target: Floats, reference: Floats) -> Factor | None:
    """The number, where it leaves less than the standard allows and a tenth of what an offset leaves.

    Args:
        target: losses (S,); NaN where there is none.
        reference: the same of the other run.
    """
    known = np.isfinite(target) & np.isfinite(reference) & (reference != 0)
    if known.sum() < FACTOR_FEWEST:
        return None
    actual, expected = target[known], reference[known]
    number = float(np.median(actual / expected))
    made = number * expected
    size = float(np.abs(made).mean())
    left = float(np.abs(actual - made).mean())
    by_offset = float(np.abs(actual - expected - np.median(actual - expected)).mean())
    if not size or left >= MEAN_REL * size or left >= FACTOR_BETTER * by_offset:
        return None
    return Factor(factor=number, residual=left / size)
