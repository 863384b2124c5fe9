"""Parts of the loss that logs print by themselves: load balancing, z-loss, multi-token prediction.

The loss that is judged need not show them: Megatron prints the language model's loss alone, and what a part
adds to another's sum is a hundredth of it or less.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from trueup.curves.statistics.centred import centre
from trueup.curves.statistics.envelope import repeat_distances, repeats_centre
from trueup.curves.thresholds import FIRST_REL, MEAN_REL
from trueup.types.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLoss:
    """A part of the loss that differs."""

    column: str
    step: int | None
    """the first step, where it differs there already; None where its mean differs"""
    target: float
    """at that step, or on average"""
    reference: float

    @property
    def relative(self) -> float:
        """target - reference, of the reference."""
        return (self.target - self.reference) / abs(self.reference) if self.reference else np.inf

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self) | {"relative": self.relative}


def part_loss(
    column: str, target: Floats, references: Floats, steps: Ints, *, from_the_first: bool
) -> PartLoss | None:
    """Where it differs at the first step by more than the standard allows the loss there, or on average by
    more than it allows the mean, than noise and trend explain, and than repeats are apart; else None.

    Args:
        column: its name.
        target: (S,); NaN where there is none.
        references: (k, S) of the reference and its repeats.
        steps: (S,).
        from_the_first: whether no weight was updated before the first step.
    """
    reference = repeats_centre(references)
    known = np.isfinite(target) & np.isfinite(reference)
    if not known.any():
        return None
    first = int(np.argmax(known))
    gap = target - reference
    if from_the_first and first == 0 and abs(gap[0]) > FIRST_REL * abs(reference[0]):
        return PartLoss(
            column=column, step=int(steps[0]), target=float(target[0]), reference=float(reference[0])
        )
    found = centre(gap[known])
    level = float(reference[known].mean())
    apart = repeat_distances(references)[1] or 0.0
    if found.is_centred or abs(found.mean) <= max(MEAN_REL * abs(level), apart):
        return None
    return PartLoss(column=column, step=None, target=float(target[known].mean()), reference=level)
