"""A difference that comes, stays for a while, and goes again: neither a divergence nor a steady offset."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from trueup.curves.statistics.envelope import Band
from trueup.curves.statistics.excursions import stretches
from trueup.curves.thresholds import LATE_SHARE, PASSING_LEFT
from trueup.types.arrays import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """Where the averaged difference is outside the band, while it is inside before and after."""

    first_step: int
    last_step: int
    largest: float
    """largest difference there, averaged over the band's window, with its sign"""
    from_the_start: bool
    """whether nothing was seen before it"""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def passing(room: Band, steps: Ints) -> Passing | None:
    """The one stretch outside the band that ends, and before and after which little is left.

    It must be over for a fifth of the run, be the only one but for stretches that come to a quarter of it
    together, and the difference elsewhere must be less than a quarter of it: a difference that wanders, or
    that stays in part, is none.
    """
    smoothed = np.nan_to_num(room.smoothed)
    outside = np.abs(smoothed) > room.half_width
    found = stretches(outside, room.window)
    if not found:
        return None
    sums = [abs(float(smoothed[first : last + 1].sum())) for first, last in found]
    at = int(np.argmax(sums))
    first, last = found[at]
    rest = np.ones(len(smoothed), bool)
    rest[max(0, first - room.window) : last + room.window + 1] = False
    over = len(smoothed) - (last + room.window + 1) >= LATE_SHARE * len(smoothed)
    if not over or sum(sums) - sums[at] > PASSING_LEFT * sums[at]:
        return None
    after = rest.copy()
    after[:first] = False
    size = PASSING_LEFT * sums[at] / (last + 1 - first)
    if any(abs(float(smoothed[part].mean())) > size for part in (rest, after) if part.any()):
        return None
    inside = smoothed[first : last + 1]
    return Passing(
        first_step=int(steps[first]),
        last_step=int(steps[last]),
        largest=float(inside[int(np.argmax(np.abs(inside)))]),
        from_the_start=first <= room.window,
    )
