"""Where exactly two runs part: the last step at which their difference is what it was before.

A least-squares change point of a curve that bends away slowly, or blows up, is late: it is drawn to the
middle of what comes after. Here the difference is followed back from where it has left its early level for
good, and the first bend is fitted by itself, over as many steps as one bend describes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trueup.curves.statistics.noise import robust_scale
from trueup.curves.thresholds import (
    BEND_MISFIT,
    BEND_SEEN,
    BEND_SIGMAS,
    DEPARTED_FEWEST,
    DEPARTED_SIGMAS,
    DEPARTED_WINDOWS,
)
from trueup.types.arrays import Bools, Floats, Ints

_SCALES, _POINTS, _PLACES = 2, 240, 80
_POWERS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
_RATES = (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.56, 0.8, 1.1, 1.6)
"""of the window; neighbours are so near that no true rate between them moves the place of the bend much"""
_HALVED = 4
"""how often what is taken for before is halved: its latter part may be after"""
_NOTHING = 1e-300


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
    while True:
        end = min(last, gone + ahead)
        places, chances, misfit = _fitted(values, gone, end)
        if found is None or _fits(misfit):
            share = np.cumsum(chances) / chances.sum()
            earliest, index, latest = (
                int(places[min(int(np.searchsorted(share, at)), len(places) - 1)]) for at in (0.05, 0.5, 0.95)
            )
            found = Departure(index=index, earliest=earliest, latest=latest, gone=gone)
        if end == last:
            return found
        ahead *= 2


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


def _fitted(values: Floats, gone: int, end: int) -> tuple[Ints, Floats, float]:
    """Places of the bend, how likely each is, and by how many of its errors the best misses."""
    begin = max(0, gone - max(3 * (end - gone), 3 * DEPARTED_FEWEST))
    width = max(1, (end - begin) // _POINTS)
    num = (end - begin) // width
    y = values[begin : begin + num * width].reshape(num, width).mean(axis=1)
    known = max(4, (gone - begin) // width)
    at: Floats = np.arange(num, dtype=np.float64) + 0.5
    first, last = max(1, known // 8), min(known, num - 3)
    edges: Floats = np.array([last], np.float64)
    if last > first:
        edges = np.unique(np.linspace(first, last, min(_PLACES, last - first + 1)).round()).astype(np.float64)
    early = y[: max(4, int(edges[len(edges) // 2]))]
    memory = _neighbours(early)
    y = y[1:] - memory * y[:-1]
    y = y - y.mean()
    noise = max(float(np.var(early[1:] - memory * early[:-1])), _NOTHING)
    best = np.full(len(edges), np.inf)
    spread = float(np.std(early))
    for shape, unit in _bends(at, edges):
        x = shape[:, 1:] - memory * shape[:, :-1]
        x = x - x.mean(axis=1, keepdims=True)
        size, length = x @ y, np.maximum(np.einsum("pi,pi->p", x, x), _NOTHING)
        seen = True if unit is None else _is_seen(np.abs(size / length) * unit, spread)
        best = np.minimum(best, float(y @ y) - np.where(seen, size**2 / length, 0.0))
    free = max(1.0, num - 4.0)
    misfit = (float(best.min()) / noise - free) / math.sqrt(2 * free)
    chances = np.exp(-(best - best.min()) / 2 / max(noise, float(best.min()) / free))
    return (begin + edges * width).astype(np.int64), chances, misfit


def _is_seen(height: Floats, spread: float) -> Bools:
    """Whether a bend is seen soon after it began: what blew up by many times its first size unseen may have
    begun anywhere before."""
    return np.asarray(height >= BEND_SEEN * spread)


def _bends(at: Floats, edges: Floats) -> list[tuple[Floats, float | None]]:
    """Shapes (P, N) that are zero up to each place: a jump, powers, levelling off, blowing up; with the last
    their height when they have grown by e."""
    u = np.maximum(at[None, :] - edges[:, None], 0.0) / len(at)
    found = [(u > 0).astype(np.float64)]
    found += [u**power for power in _POWERS]
    found += [-np.expm1(-u / rate) for rate in _RATES]
    found += [np.minimum(u / rate, 1.0) for rate in _RATES]
    ends = [math.exp(-1 / rate) for rate in _RATES]
    blown = [(np.expm1(u / rate) * end, math.expm1(1) * end) for rate, end in zip(_RATES, ends, strict=True)]
    return [*((shape, None) for shape in found), *blown]


def _neighbours(values: Floats) -> float:
    """Correlation of neighbours, at least 0."""
    x = values - values.mean()
    power = float(x @ x)
    return min(max(float(x[1:] @ x[:-1]) / power, 0.0), 0.99) if power > 0 else 0.0
