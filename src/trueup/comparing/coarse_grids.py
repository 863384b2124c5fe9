"""Results that one run rounds to a coarse dtype and returns in a finer one, as where a module casts inside.

Where no call inside a module was recorded, all dtypes are the same, and the result differs by far more than
its dtype rounds: a first difference. The numbers tell. A float32 number is one of bfloat16 by chance once in
2^16, one of float16 once in 2^13: where every number of one side is one, and hardly any of the other, that
side has rounded it. What a coarse dtype makes in one module is a few of its roundings; a larger difference is
not of the dtype alone, and stays a first difference.

Where values were not kept the extremes tell: the smallest, the largest and the least magnitude, all of them
by chance once in 2^48 (of float16, once in 2^39).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from trueup.comparing.coarse_choices import values_of
from trueup.comparing.coarse_results import is_rounding
from trueup.comparing.first import JudgedStep, first_of_rows
from trueup.comparing.judgement import ORIGIN
from trueup.comparing.metrics import SKETCH
from trueup.comparing.precision_gap import PrecisionGap, computing, gap_from
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.sites import charged_column
from trueup.comparing.thresholds import COARSER, FINER, ON_GRID_BY_CHANCE
from trueup.numerics.dtypes import rounded_to, unit_roundoffs
from trueup.store import TraceSource
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import EvidenceCode
from trueup.types.reason import Reason, reason

_COARSE = ("bfloat16", "float16")
_MOST_NUMBERS = 1 << 22
"""of a tensor whose values are read; of larger ones the extremes"""
_EXTREMES = ("minimum", "maximum", "smallest_nonzero")


def gap_of_grids(judged: JudgedStep, sides: tuple[TraceSource, TraceSource] | None) -> PrecisionGap | None:
    """Where the first thing that the runs make otherwise lies on a coarse dtype's grid on one side alone.

    ``sides``: where values are read; None: not read.
    """
    rows, metrics, judgement = judged.rows, judged.metrics, judged.judgement
    origins = np.flatnonzero(judgement.attribution.status == ORIGIN)
    made = rows.paired & rows.phase_is("forward") & rows.slot_starts("output")
    made &= rows.target.dtype == rows.reference.dtype
    if not len(origins) or not made[origins[0]] or metrics.evidence[origins[0]] > SKETCH:
        return None
    first = int(origins[0])
    dtype = rows.match.words.dtype[rows.target.dtype[first]]
    roundoffs = dict(zip((dtype, *_COARSE), unit_roundoffs([dtype, *_COARSE]), strict=False))
    for coarse in _COARSE:
        finer, coarser = roundoffs[dtype], roundoffs[coarse]
        if not is_rounding(float(metrics.rel_l2[first]), FINER * finer, coarser):
            continue
        on = [_extremes_on_grid(half, coarse) for half in (rows.target, rows.reference)]
        for side in (0, 1):
            shown = made & on[side][0] & ~on[1 - side][1]
            read = _values_on_grid(judged, first, coarse, side, sides) if shown[first] else False
            if read is not False:
                known = reason(
                    EvidenceCode.ON_GRID,
                    side="reference" if side else "target",
                    site=str(judged.table["site"][first]),
                    dtype=coarse,
                    values=bool(read),
                )
                target, reference = (dtype, coarse) if side else (coarse, dtype)
                return _gap(judged, first, shown & _like(rows, first), target, reference, known)
    return None


def _sent_back(judged: JudgedStep, shown: Bools, dtype: str) -> Bools:
    """Gradients of what the same modules hold and are given, no further apart than the dtype rounds: they go
    through the same casts."""
    rows = judged.rows
    codes, _ = charged_column(rows)
    modules = np.unique(codes[shown & (codes >= 0)])
    near = judged.metrics.rel_l2 <= COARSER * unit_roundoffs([dtype])[0]
    return np.asarray(rows.phase_is("backward", "param_grad") & np.isin(codes, modules) & near)


def _extremes_on_grid(half: Half, dtype: str) -> tuple[Bools, Bools]:
    """Where all three extremes are numbers of a coarse dtype, and where any is; zero, which is one of every
    dtype, counts as none, and equal ones as no proof."""
    columns = [half.column(name).cast(pl.Float64).fill_null(0.0).to_numpy() for name in _EXTREMES]
    numbers = np.nan_to_num(np.stack(columns), posinf=0.0, neginf=0.0)
    on = (numbers != 0) & (rounded_to(numbers, dtype) == numbers)
    low, high, least = numbers
    differ = (low != high) & (np.abs(low) != least) & (np.abs(high) != least)
    return np.asarray(on.all(axis=0) & differ), np.asarray(on.any(axis=0))


def _values_on_grid(
    judged: JudgedStep, row: int, dtype: str, side: int, sides: tuple[TraceSource, TraceSource] | None
) -> bool | None:
    """Whether all values of one side are numbers of a coarse dtype, and not half of the other's; None where
    they were not kept."""
    halves = judged.rows.target, judged.rows.reference
    if sides is None or max(half.numel[row] for half in halves) > _MOST_NUMBERS:
        return None
    values = [values_of(h, row, of, *at) for h, of, at in zip(halves, sides, judged.at, strict=True)]
    own, others = values[side], values[1 - side]
    if own is None or others is None:
        return None
    return rounded_on_one_side(own, others, dtype)


def rounded_on_one_side(values: Floats, others: Floats, dtype: str) -> bool:
    """Whether all of the one are numbers of a coarse dtype, and not more than half of the others are."""
    (on, of_others) = (_on_grid(one, dtype) for one in (values, others))
    return bool(on.size and on.all() and of_others.size and of_others.mean() <= ON_GRID_BY_CHANCE)


def _on_grid(values: Floats, dtype: str) -> Bools:
    """Which of the numbers other than 0 a coarse dtype holds."""
    numbers = values[np.isfinite(values) & (values != 0)]
    return np.asarray(rounded_to(numbers, dtype) == numbers)


def _like(rows: StepRows, row: int) -> Bools:
    """The results of modules of one class, or of one function."""
    column = "type" if rows.kind_is("module")[row] else "name"
    codes = rows.of_call(column)
    return np.asarray((codes == codes[row]) & (rows.kind_is("module") == rows.kind_is("module")[row]))


def _gap(
    judged: JudgedStep, first: int, shown: Bools, target: str, reference: str, known: Reason
) -> PrecisionGap:
    functions, modules = computing(judged.rows, shown)
    gap = gap_from(judged, first, target, reference, functions=functions, modules=modules, grounds=(known,))
    after = np.arange(len(judged.rows)) > first
    explained = shown | _sent_back(judged, shown, gap.coarser)
    own = np.flatnonzero((judged.judgement.attribution.status == ORIGIN) & after & ~explained)
    return replace(gap, beyond=first_of_rows(judged, int(own[0])) if len(own) else None)
