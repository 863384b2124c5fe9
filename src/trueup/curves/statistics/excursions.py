"""Spikes of the difference from which the target recovers: how tall, how long, and who else has them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from trueup.curves.statistics.envelope import window_of
from trueup.curves.statistics.noise import robust_scale
from trueup.curves.thresholds import EXCURSION_AGAIN, EXCURSION_HEIGHT, SPIKE_SIGMAS, TAIL_SIGMAS
from trueup.types.arrays import Bools, Floats, Ints

_LISTED, _PARTS, _BESIDE = 20, 10, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Excursion:
    """The target's loss is far above the reference's for some steps, and comes back."""

    first_step: int
    last_step: int
    height: float
    """largest difference, above what it is otherwise"""

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Excursions:
    """All of them."""

    largest: Excursion
    steps: tuple[int, ...]
    """where they begin, the first 20"""
    num: int
    others: float
    """how far a run of the reference goes above the target at most"""

    @property
    def stands_out(self) -> bool:
        """Whether the reference's own runs have nothing like it."""
        return self.largest.height > EXCURSION_AGAIN * self.others

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self) | {"stands_out": self.stands_out}


def excursions(
    difference: Floats, reference: Floats, steps: Ints, num_references: int
) -> tuple[Excursions | None, Bools]:
    """The excursions upwards that end, beyond a share of the loss and the scatter, and their steps.

    What the first step is in already is none: nobody saw the loss rise.
    ``num_references``: what one of them does alone shows as so small a part of it in their mean.
    """
    known = np.isfinite(difference) & np.isfinite(reference)
    inside = np.zeros(len(difference), bool)
    if not known.any():
        return None, inside
    high, low = _levels(np.where(known, difference, np.nan))
    above = np.where(known, difference - high, 0.0)
    limit = EXCURSION_HEIGHT * np.abs(np.where(known, reference, np.inf))
    if not (above > limit).any():
        return None, inside
    begin, end = int(np.argmax(known)), int(np.flatnonzero(known)[-1]) + 1
    limit = np.maximum(limit, SPIKE_SIGMAS * robust_scale(difference - (high + low) / 2))
    spread = TAIL_SIGMAS * robust_scale(difference)
    found = []
    for first, last in stretches(above > limit, window_of(len(above))):
        if last + window_of(len(above)) >= end:
            continue
        while first > 0 and above[first - 1] > spread:
            first -= 1
        while last + 1 < len(above) and above[last + 1] > spread:
            last += 1
        if first <= begin:
            continue
        inside[first : last + 1] = True
        height = float(above[first : last + 1].max())
        found.append(Excursion(first_step=int(steps[first]), last_step=int(steps[last]), height=height))
    if not found:
        return None, inside
    below = float(np.where(known, difference - low, 0.0).min())
    others = num_references * max(0.0, -below)
    largest = max(found, key=lambda one: one.height)
    begins = tuple(one.first_step for one in found)
    return Excursions(largest=largest, steps=begins[:_LISTED], num=len(found), others=others), inside


def spikes_of_reference(
    difference: Floats, reference: Floats, steps: Ints
) -> tuple[Excursions | None, Bools]:
    """The excursions downwards in which the reference itself rises, by half of them or more, and their steps.

    Where it does not, the target is low for a while: that is no spike.
    """
    found, inside = excursions(-difference, reference, steps, 1)
    if found is None:
        return None, inside
    largest = found.largest
    first, last = np.searchsorted(steps, (largest.first_step, largest.last_step))
    beside = np.concatenate(
        [reference[max(0, first - _BESIDE) : first], reference[last + 1 : last + 1 + _BESIDE]]
    )
    rise = float(np.nanmax(reference[first : last + 1])) - float(np.nanmedian(beside))
    if rise < largest.height / 2:
        return None, np.zeros_like(inside)
    return found, inside


def _levels(difference: Floats) -> tuple[Floats, Floats]:
    """What the difference is around each step but for spikes: the higher and the lower of the medians over
    the tenths of the run before and after."""
    parts = np.array_split(difference, _PARTS)
    medians = [float(np.median(known)) if len(known := p[np.isfinite(p)]) else 0.0 for p in parts]
    beside = [(*medians[max(0, at - 1) : at], *medians[at + 1 : at + 2]) for at in range(len(parts))]
    sizes = [len(p) for p in parts]
    return np.repeat([max(b) for b in beside], sizes), np.repeat([min(b) for b in beside], sizes)


def stretches(above: Bools, gap: int) -> list[tuple[int, int]]:
    """First and last of the stretches, those no further apart than ``gap`` joined."""
    at = np.flatnonzero(above)
    if not len(at):
        return []
    cut = np.flatnonzero(np.diff(at) > gap)
    return list(zip(at[[0, *(cut + 1)]].tolist(), at[[*cut, -1]].tolist(), strict=True))
