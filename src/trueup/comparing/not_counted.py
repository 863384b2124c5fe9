"""NaN and infinities that another tool's statistics show without counting them.

A maximum over all values that is NaN proves a NaN, one that is infinite an infinity; a finite maximum and
minimum beside a finite mean or norm prove that there is none. An infinite norm proves nothing: norms
overflow by themselves. Where neither side has a mean or norm, both are of one tool: whether its maximum
passes on every NaN, the first alone or only NaN throughout, NaN on one side beside a finite number on the
other is another tensor.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.rows import Half, StepRows
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.hidden import lowest_visible
from trueup.types.arrays import Bools, Floats

KINDS = (("num_nan", "NaN"), ("num_posinf", "+Inf"), ("num_neginf", "-Inf"))


def shown_apart(rows: StepRows) -> dict[str, tuple[Bools, Bools]]:
    """Kind -> pairs whose target alone, and whose reference alone, is shown to hold one, not counted on both
    sides. Minus infinity beside a number that hides as well in a mask is none."""
    halves = rows.target, rows.reference
    if not any(_lacks_counts(rows, half) for half in halves):
        return {}
    bare = _bare(halves[0]) & _bare(halves[1])
    shown = [_shown(half, bare) for half in halves]
    floating = _floating(rows, halves[0]) & _floating(rows, halves[1])
    found = {}
    for at, (count, what) in enumerate(KINDS):
        known = ~np.isnan(halves[0].statistics[count] + halves[1].statistics[count])
        open_ = rows.paired & floating & ~known
        sides = [one[at] for one in shown]
        hidden = [
            _hides(rows, half) if count == "num_neginf" else np.zeros(len(rows), bool) for half in halves
        ]
        found[what] = (
            np.asarray(open_ & (sides[0] == 1) & (sides[1] == 0) & ~hidden[1]),
            np.asarray(open_ & (sides[1] == 1) & (sides[0] == 0) & ~hidden[0]),
        )
    return found


def _lacks_counts(rows: StepRows, half: Half) -> bool:
    unknown = np.isnan(sum(half.statistics[count] for count, _ in KINDS))
    return bool((rows.paired & (half.summary >= 0) & unknown).any())


def _hides(rows: StepRows, half: Half) -> Bools:
    limits = np.array([lowest_visible(word) for word in rows.match.words.dtype] + [-np.inf])
    return np.asarray(np.nan_to_num(_Known(half, "minimum").value) <= limits[half.dtype])


def _floating(rows: StepRows, half: Half) -> Bools:
    words = rows.match.words.dtype
    kinds = np.array([w in DTYPES and DTYPES[w].kind == "float" for w in words] + [False])
    return np.asarray(kinds[half.dtype])


def _bare(half: Half) -> Bools:
    """Rows that have neither a mean nor a norm, not even one that is NaN."""
    return np.asarray(
        np.logical_and.reduce([half.column(name).is_null().to_numpy() for name in ("mean", "l2_norm")])
    )


def _shown(half: Half, bare: Bools) -> list[Floats]:
    """For each kind 1 where it is shown, 0 where it is shown that there is none, NaN where nothing tells."""
    high, low, mean, norm = (_Known(half, name) for name in ("maximum", "minimum", "mean", "l2_norm"))
    shown = [high.nan | low.nan, (high.value == np.inf) | (low.value == np.inf), low.value == -np.inf]
    of_all = bare | np.isfinite(mean.value) | np.isfinite(norm.value)
    none = np.isfinite(high.value) & np.isfinite(low.value) & of_all
    found = []
    for (count, _), here in zip(KINDS, shown, strict=True):
        counted = half.statistics[count]
        known = np.where(none, 0.0, np.where(here, 1.0, np.nan))
        found.append(np.where(np.isnan(counted), known, np.minimum(counted, 1.0)))
    return found


class _Known:
    """A statistic of every row, and where it is NaN and not merely absent."""

    def __init__(self, half: Half, name: str) -> None:
        column = half.column(name)
        self.nan: Bools = column.is_nan().fill_null(value=False).to_numpy()
        self.value: Floats = column.fill_null(float("nan")).to_numpy()
