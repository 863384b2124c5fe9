"""Where exactly two runs part: the last step at which their difference is what it was before.

A least-squares change point of a curve that bends away slowly, or blows up, is late: it is drawn to the
middle of what comes after. Here the difference is followed back from where it has left its early level for
good, and the first bend is fitted by itself, over as many steps as one bend describes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trueup.curves.statistics.bends import bend, noise_of
from trueup.curves.statistics.noise import robust_scale
from trueup.curves.thresholds import (
    BEND_MISFIT,
    BEND_SIGMAS,
    DEPARTED_FEWEST,
    DEPARTED_SIGMAS,
    DEPARTED_WINDOWS,
)
from trueup.types.arrays import Floats

_SCALES = 2
_BEFORE, _KNOWN, _WINDOWS, _RECENT = 3, 200, 20, 2000
"""steps before a bend: times those after it, at the least, and times those of a mean that was far; the most
that its noise is told from"""
_FEWEST = 40
_HALVED = 4
"""how often what is taken for before is halved: its latter part may be after"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """Where a difference leaves its early level; indices."""

    index: int
    """the likeliest: as likely too early as too late"""
    earliest: int
    """before which it is with a chance of one in twenty"""
    latest: int
    """after which it is with a chance of one in twenty"""
    gone: int
    """from where on every mean over some steps is far from the early level"""


def departure(values: Floats, coarse: int) -> Departure | None:
    """Follow ``values`` (finite) back to where they part from what they were well before ``coarse``.

    None where they do not stay away, or too little is known of before.
    """
    tried = [
        _gone(values, coarse >> halved) for halved in range(_HALVED) if coarse >> halved >= DEPARTED_FEWEST
    ]
    known = [(gone, window) for gone, window in tried if gone is not None and gone >= DEPARTED_FEWEST]
    return _bend(values, *min(known)) if known else None


def _gone(values: Floats, before: int) -> tuple[int | None, int]:
    """By when values have left for good: the end of the first steps whose mean, and all later ones, is away
    to one side; and how many steps a mean is over."""
    level = float(np.median(values[:before]))
    sums = np.concatenate([[0.0], np.cumsum(values - level)])
    best, used, window = None, 1, 1
    while before >= DEPARTED_WINDOWS * window and len(values) > 2 * window:
        means = (sums[window:] - sums[:-window]) / window
        early = means[: max(1, before - window + 1)]
        spread = max(robust_scale(early), float(np.std(early[::window])) if window > 1 else 0.0)
        side = math.copysign(1.0, float(means[-1]))
        back = np.flatnonzero(side * means <= DEPARTED_SIGMAS * spread)
        first = int(back[-1]) + 1 if len(back) else 0
        if first < len(means) and (best is None or first + window - 1 < best):
            best, used = first + window - 1, window
        window *= _SCALES
    return best, used


def _bend(values: Floats, gone: int, window: int) -> Departure:
    """Fit one bend over ever more steps after ``gone``; the last that fits is the best known."""
    found, ahead, last = None, max(4, window), _far(values, gone, window)
    noise = noise_of(_early(values, max(DEPARTED_FEWEST, gone - 2 * window)))
    while True:
        end = min(last, gone + ahead)
        begin = max(0, gone - max(_BEFORE * (end - gone), _KNOWN, _WINDOWS * window))
        first = begin + max(4, (gone - begin) // 8)
        for _ in range(2):  # once more with the noise up to the place
            one = bend(values, noise, begin=begin, end=end, first=first, last=gone)
            if one.earliest < _FEWEST:
                break
            noise = noise_of(_early(values, one.earliest))
        if found is not None and not _fits(one.misfit):
            return found
        found = Departure(index=one.index, earliest=one.earliest, latest=one.latest, gone=gone)
        if end == last:
            return found
        ahead *= 2


def _early(values: Floats, end: int) -> Floats:
    return values[max(0, end - _RECENT) : end]


def _fits(misfit: float) -> bool:
    """Whether one bend describes the steps, by how many of its errors the best misses."""
    return misfit < BEND_MISFIT


def _far(values: Floats, gone: int, window: int) -> int:
    """Where values are so far away that they tell of how a run blows up, and no more of where it began."""
    early = values[: max(DEPARTED_FEWEST, gone - 2 * window)]
    size = np.abs(values[gone:] - np.median(early))
    far = np.flatnonzero(size > BEND_SIGMAS * robust_scale(early))
    reach = int(far[0]) if len(far) else len(values)
    return min(len(values), gone + max(4, 2 * window, reach))
