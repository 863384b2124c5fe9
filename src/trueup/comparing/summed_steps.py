"""What a program sends over ranks in several steps, and another in one: sums of the same numbers.

A program that takes gradients away after each microbatch has its steps cut there. One that reduces each
microbatch's gradients, and one that adds them up first and reduces the sum, then send

    s_1, s_2, ..., s_n    and    nothing, ..., nothing, s_1 + s_2 + ... + s_n

at the same place of n steps. Sketches are linear: the sums of both sides can be held against each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from trueup.comparing.metrics import sketches_of
from trueup.comparing.rows import Half, StepRows
from trueup.types.arrays import Floats

Key = tuple[str, str, int | tuple[int, ...], int]
"""name of the collective, slot, shape, and number among those of one step"""


@dataclass(slots=True)
class SummedSteps:
    """Of one rank: sums of what one run alone has sent at a place since both last did."""

    sums: dict[Key, list[Floats]] = field(default_factory=dict)
    """sketches of the target's and the reference's"""
    _seen: dict[int, tuple[Key, Floats, Floats]] = field(default_factory=dict)

    def rest(self, rows: StepRows) -> Floats:
        """Of each pair of a place where one run alone has sent before: how far the sums of both sides are
        apart, over the larger norm; NaN for all others."""
        out = np.full(len(rows), np.nan)
        self._seen = {}
        at = np.flatnonzero(rows.phase_is("collective") & (rows.of_call("parent") < 0))
        sides = [_sketched(half, at) for half in (rows.target, rows.reference)]
        number: Counter[tuple[object, ...]] = Counter()
        names, words = rows.of_call("name"), rows.match.words
        for place, row in enumerate(at.tolist()):
            half = rows.target if rows.target.record[row] >= 0 else rows.reference
            site = words.name[names[row]], words.slot[rows.slot[row]], words.shape[half.shape[row]]
            key = (*site, number[site])
            number[site] += 1
            target, reference = (sketches[place] for sketches in sides)
            if np.isnan(target).any() or np.isnan(reference).any():
                continue
            self._seen[row] = key, target, reference
            if rows.paired[row] and key in self.sums:
                before = self.sums[key]
                totals = target + before[0], reference + before[1]
                most = max(map(float, map(np.linalg.norm, totals)))
                out[row] = float(np.linalg.norm(totals[0] - totals[1])) / most if most else 0.0
        return out

    def take(self, rows: StepRows, differs: set[int]) -> None:
        """What this step adds. Where both have sent and nothing ``differs``, sums begin anew."""
        for row, (key, target, reference) in self._seen.items():
            if not rows.paired[row] or row in differs:
                held = self.sums.setdefault(key, [np.zeros_like(target), np.zeros_like(reference)])
                self.sums[key] = [held[0] + target, held[1] + reference]
            else:
                self.sums.pop(key, None)
        self._seen = {}


def _sketched(half: Half, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    """(N, 64): zeros where the side sends nothing, NaN where what it sends has no sketch."""
    summaries = np.maximum(half.summary[at], 0)
    if not half.tables.summaries.height:
        return np.where((half.record[at] < 0)[:, None], 0.0, np.nan) * np.ones((1, 1))
    found, present = sketches_of(half.tables.summaries, summaries)
    found[~present | (half.summary[at] < 0)] = np.nan
    found[half.record[at] < 0] = 0.0
    return found
