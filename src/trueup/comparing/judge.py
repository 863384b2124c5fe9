"""A status and, where there is something to say, a reason for every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from trueup.comparing.metrics import NONE, STATISTICS, Metrics
from trueup.comparing.one_sided import STEP_COUNTER, gaps_of, of_capture
from trueup.comparing.rows import Bools, Floats, Rows
from trueup.importers.msprobe.tables import NODE_GRADIENT
from trueup.matching.codes import Codes
from trueup.merging.step import COPIES, copies_distance
from trueup.numerics.dtypes import DTYPES, unit_roundoffs

STATUS = ("equal", "within_noise", "different", "unmatched", "undecided")
EQUAL, WITHIN, DIFFERENT, UNMATCHED, UNDECIDED = range(5)

_NEVER_BRACKETED = ("param", "param_grad", "optimizer", "loss")
"""A missing gradient or parameter is never a mere other spelling of the same mathematics."""


@dataclass(slots=True)
class Judgement:
    """Columns beside Rows."""

    status: Codes
    reasons: dict[int, str]
    tolerance: Floats
    """bound on rel_l2"""
    score: Floats
    bracketable: Bools
    """left without a verdict, but harmless where its neighbours agree"""


def judge(rows: Rows, metrics: Metrics, bound: Floats) -> Judgement:
    """Compare every pair with its bound; pairs that cannot be compared say why."""
    verdict = Judgement(
        status=np.full(len(rows), UNDECIDED, np.int64),
        reasons={},
        tolerance=np.full(len(rows), np.nan),
        score=np.full(len(rows), np.nan),
        bracketable=np.zeros(len(rows), bool),
    )
    _unmatched(rows, verdict)
    _undecided(rows, metrics, verdict)
    kinds = _kinds(rows)
    comparable = rows.paired & (metrics.evidence != NONE)
    floating = comparable & (kinds[0] == "f") & (kinds[1] == "f")
    _floating(rows, metrics, bound, verdict, floating)
    discrete = comparable & ~floating
    verdict.status[discrete] = np.where(metrics.difference[discrete] == 0, WITHIN, DIFFERENT)
    verdict.tolerance[discrete] = 0.0
    verdict.score[discrete] = np.where(metrics.difference[discrete] == 0, 0.0, np.inf)
    same_dtype = rows.target.dtype == rows.reference.dtype
    hidden = discrete & metrics.known_bits & (metrics.difference == 0) & same_dtype
    verdict.status[hidden], verdict.score[hidden] = DIFFERENT, np.inf
    _follow_up(rows, metrics, verdict, discrete)
    equal = rows.paired & metrics.bits_equal
    verdict.status[equal], verdict.score[equal] = EQUAL, 0.0
    _non_finite(rows, metrics, verdict, comparable & ~equal)
    _other_dtype(rows, verdict, floating)
    _copies(rows, metrics, verdict)
    _in_node_order(rows, metrics, verdict)
    return verdict


def _kinds(rows: Rows) -> tuple[Any, Any]:
    words = rows.match.words.dtype
    letter = {"float": "f", "int": "i", "uint": "i", "bool": "b", "complex": "f"}
    table = np.array([letter[DTYPES[w].kind] if w in DTYPES else "?" for w in words] + ["-"])
    return table[rows.target.dtype], table[rows.reference.dtype]


def _unmatched(rows: Rows, verdict: Judgement) -> None:
    match = rows.match
    only_t, only_r = np.flatnonzero(rows.reference.record < 0), np.flatnonzero(rows.target.record < 0)
    reasons_t = dict(zip(match.records.only_target.tolist(), match.why_only_target(), strict=True))
    reasons_r = dict(zip(match.records.only_reference.tolist(), match.why_only_reference(), strict=True))
    verdict.reasons.update((row, reasons_t[int(rows.target.record[row])]) for row in only_t.tolist())
    verdict.reasons.update((row, reasons_r[int(rows.reference.record[row])]) for row in only_r.tolist())
    verdict.status[only_t] = verdict.status[only_r] = UNMATCHED
    call_paired = np.zeros(len(rows), bool)
    call_paired[only_t] = match.calls.reference_of[rows.target.call[only_t]] >= 0
    call_paired[only_r] = match.calls.target_of[rows.reference.call[only_r]] >= 0
    of_matched = rows.phase_is("backward") & call_paired & ~_of_unmatched_tensor(rows)
    counted = np.zeros(len(rows), bool)
    if match.bridge is not None:
        # of other code, what hands a tensor on may hold a gradient here and none there
        of_matched &= rows.kind_is("module")
        counted = rows.phase_is("optimizer") & rows.slot_is(STEP_COUNTER)
    # what a loss was made with is found in the graph, which other code need not show
    counted = counted | (rows.phase_is("loss") & ~rows.slot_is("value"))
    essential = (rows.phase_is(*_NEVER_BRACKETED) & ~counted) | of_matched
    for covered, gap in gaps_of(rows):
        verdict.reasons.update(dict.fromkeys(np.flatnonzero(covered).tolist(), gap.reason))
    verdict.bracketable |= ~rows.paired & (~essential | of_capture(rows))


def _of_unmatched_tensor(rows: Rows) -> Bools:
    """Gradients of a tensor that one run alone has at this call (attention weights one kernel returns)."""
    out = np.zeros(len(rows), bool)
    forward, backward = rows.phase_is("forward"), rows.phase_is("backward")
    num = len(rows.match.words.slot)
    for half, other in ((rows.target, rows.reference), (rows.reference, rows.target)):
        alone = (half.record >= 0) & (other.record < 0)
        at = half.call * num + rows.slot
        out |= alone & backward & np.isin(at, at[alone & forward])
    return out


def _undecided(rows: Rows, metrics: Metrics, verdict: Judgement) -> None:
    t, r = rows.target, rows.reference
    shapes = [str(list(s)) for s in rows.match.words.shape]
    exchanged = rows.phase_is("collective")
    for row in np.flatnonzero(rows.paired & (metrics.evidence == NONE)).tolist():
        if t.summary[row] < 0 or r.summary[row] < 0:
            verdict.reasons[row] = _no_summary(rows, row)
            verdict.bracketable[row] = bool(t.summary[row] < 0 and r.summary[row] < 0)
        elif t.shape[row] != r.shape[row]:
            verdict.reasons[row] = f"shape {shapes[t.shape[row]]} against {shapes[r.shape[row]]}"
            verdict.bracketable[row] = exchanged[row]  # in other buckets: what comes of it is compared
        else:
            verdict.reasons[row] = "no digest, statistics or sketch that both sides hold"


def _no_summary(rows: Rows, row: int) -> str:
    said = []
    for name, half in (("target", rows.target), ("reference", rows.reference)):
        if half.summary[row] < 0:
            why = half.tables.records["reason"][int(half.record[row])]
            said.append(f"{name}: {why or 'no tensor here'}")
    return "no summary of the tensor; " + "; ".join(said)


def _floating(rows: Rows, metrics: Metrics, bound: Floats, verdict: Judgement, floating: Bools) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        tolerance = bound / metrics.norm
        score = metrics.difference / bound
    zero = metrics.norm == 0
    tolerance = np.where(zero, np.where(bound > 0, np.inf, 0.0), tolerance)
    score = np.where(metrics.difference == 0, 0.0, score)
    verdict.tolerance[floating], verdict.score[floating] = tolerance[floating], score[floating]
    verdict.status[floating] = np.where(metrics.difference[floating] <= bound[floating], WITHIN, DIFFERENT)
    unknown = floating & (np.isnan(metrics.difference) | np.isnan(bound))
    verdict.status[unknown] = UNDECIDED
    verdict.reasons.update(
        dict.fromkeys(np.flatnonzero(unknown).tolist(), "the summaries hold no finite number")
    )
    weak = floating & (metrics.evidence == STATISTICS) & (verdict.status == WITHIN) & metrics.known_bits
    note = "bits differ; statistics alone bound the difference only from below"
    verdict.reasons.update(dict.fromkeys(np.flatnonzero(weak).tolist(), note))


def _follow_up(rows: Rows, metrics: Metrics, verdict: Judgement, discrete: Bools) -> None:
    """Integers that follow from values already differing by rounding (an argmax) decide nothing by
    themselves."""
    loose = rows.paired & ~metrics.bits_equal & (verdict.status == WITHIN)
    loose &= ~np.isnan(unit_roundoffs(rows.match.words.dtype)[rows.target.dtype])
    before = np.cumsum(loose) - loose
    following = discrete & (verdict.status == DIFFERENT) & (before > 0)
    verdict.status[following] = UNDECIDED
    why = "whole numbers that may follow from values differing by rounding before them"
    verdict.reasons.update(dict.fromkeys(np.flatnonzero(following).tolist(), why))


def _non_finite(rows: Rows, metrics: Metrics, verdict: Judgement, open_: Bools) -> None:
    for row in np.flatnonzero(open_ & (metrics.mismatched > 0)).tolist():
        verdict.reasons[row] = f"NaN or infinity on one side only at {metrics.mismatched[row]} places"
        verdict.status[row], verdict.score[row] = DIFFERENT, np.inf
    t, r = rows.target.statistics, rows.reference.statistics
    for name, what in (("num_nan", "NaN"), ("num_posinf", "+Inf"), ("num_neginf", "-Inf")):
        for row in np.flatnonzero(open_ & (t[name] != r[name]) & ~np.isnan(t[name] + r[name])).tolist():
            said = f"{what}: {t[name][row]:.0f} against {r[name][row]:.0f}"
            known = verdict.reasons.get(row)
            verdict.reasons[row] = f"{known}; {said}" if known and verdict.status[row] == DIFFERENT else said
            verdict.status[row], verdict.score[row] = DIFFERENT, np.inf


def _copies(rows: Rows, metrics: Metrics, verdict: Judgement) -> None:
    """Copies on several ranks that are not the same are a difference, whatever the first of them holds."""
    for name, half in (("target", rows.target), ("reference", rows.reference)):
        said = half.tables.records["reason"].cast(pl.String)
        for record in np.flatnonzero(said.str.starts_with(COPIES).fill_null(value=False).to_numpy()).tolist():
            for row in np.flatnonzero(half.record == record).tolist():
                verdict.status[row], verdict.score[row] = DIFFERENT, np.inf
                verdict.reasons[row] = f"{name}: {said[record]}"
                far = (copies_distance(said[record]) or 0.0) * np.nan_to_num(metrics.norm[row])
                metrics.difference[row] = np.fmax(metrics.difference[row], far)


def _in_node_order(rows: Rows, metrics: Metrics, verdict: Judgement) -> None:
    """Gradients that one side lists by argument, the other in an order of torch's own: they may be of other
    arguments, or turned, so that only agreement says something."""
    sides = []
    for half in (rows.target, rows.reference):
        said = half.tables.records["reason"].cast(pl.String).eq_missing(NODE_GRADIENT).to_numpy()
        sides.append(np.append(said, False)[half.record])
    if not (sides[0].any() or sides[1].any()):
        return
    settled = (verdict.status == EQUAL) | (verdict.status == WITHIN)
    unlike = rows.paired & (sides[0] != sides[1]) & ~settled
    verdict.status[unlike], verdict.score[unlike] = UNDECIDED, np.nan
    metrics.difference[unlike] = np.nan
    of_functions = rows.phase_is("backward") & rows.slot_starts("input") & rows.kind_is("api")
    verdict.bracketable |= unlike | (of_functions & ~rows.paired)
    why = f"one side holds a {NODE_GRADIENT}: which argument's it is cannot be told"
    verdict.reasons.update(dict.fromkeys(np.flatnonzero(unlike).tolist(), why))


def _other_dtype(rows: Rows, verdict: Judgement, floating: Bools) -> None:
    words = rows.match.words.dtype
    apart = floating & (rows.target.dtype != rows.reference.dtype)
    for row in np.flatnonzero(apart).tolist():
        said = f"dtype {words[rows.target.dtype[row]]} against {words[rows.reference.dtype[row]]}"
        known = verdict.reasons.get(row)
        verdict.reasons[row] = f"{said}: judged by the coarser one" if not known else f"{said}; {known}"


def bracketed(rows: Rows, verdict: Judgement) -> Bools:
    """For each row without a verdict: whether the nearest compared rows before and after it agree; the one
    after what enters before all else, the one before what one trace alone was to hold."""
    compared = (verdict.status != UNMATCHED) & (verdict.status != UNDECIDED)
    agree = (verdict.status == EQUAL) | (verdict.status == WITHIN)
    index = np.arange(len(rows))
    before = np.maximum.accumulate(np.where(compared, index, -1))
    after = np.minimum.accumulate(np.where(compared, index, len(rows))[::-1])[::-1]
    left = agree[np.maximum(before, 0)] | (before < 0)
    last = (after == len(rows)) & of_capture(rows)
    right = (agree[np.minimum(after, len(rows) - 1)] & (after < len(rows))) | last
    return np.asarray(verdict.bracketable & left & right)
