"""A status and, where there is something to say, a reason for every row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trueup.comparing.judgement import DIFFERENT, EQUAL, UNDECIDED, UNMATCHED, WITHIN, Judgement
from trueup.comparing.metrics import NONE, STATISTICS, Metrics
from trueup.comparing.one_sided import STEP_COUNTER, gaps_of, of_capture
from trueup.comparing.rows import Bools, Floats, Half, Rows
from trueup.numerics.dtypes import DTYPES, unit_roundoffs
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason, reason

_NEVER_BRACKETED = ("param", "param_grad", "optimizer", "loss")
"""A missing gradient or parameter is never a mere other spelling of the same mathematics."""


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
        verdict.reasons.update(dict.fromkeys(np.flatnonzero(covered).tolist(), Reason(gap.code)))
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
            verdict.reasons[row] = reason(
                RecordCode.SHAPE_DIFFERS, target=shapes[t.shape[row]], reference=shapes[r.shape[row]]
            )
            verdict.bracketable[row] = exchanged[row]  # in other buckets: what comes of it is compared
        else:
            verdict.reasons[row] = Reason(RecordCode.NO_COMMON_EVIDENCE)


def _no_summary(rows: Rows, row: int) -> Reason:
    lacking = []
    for name, half in (("target", rows.target), ("reference", rows.reference)):
        if half.summary[row] < 0:
            why = half.tables.reason_of(int(half.record[row]))
            lacking.append(reason(RecordCode.SIDE_WITHOUT_SUMMARY, *((why,) if why else ()), side=name))
    return Reason(RecordCode.NO_SUMMARY, parts=tuple(lacking))


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
    verdict.reasons.update(dict.fromkeys(np.flatnonzero(unknown).tolist(), Reason(RecordCode.NOTHING_FINITE)))
    weak = floating & (metrics.evidence == STATISTICS) & (verdict.status == WITHIN) & metrics.known_bits
    verdict.reasons.update(dict.fromkeys(np.flatnonzero(weak).tolist(), Reason(RecordCode.LOWER_BOUND)))


def _follow_up(rows: Rows, metrics: Metrics, verdict: Judgement, discrete: Bools) -> None:
    """Integers that follow from values already differing by rounding (an argmax) decide nothing by
    themselves."""
    loose = rows.paired & ~metrics.bits_equal & (verdict.status == WITHIN)
    loose &= ~np.isnan(unit_roundoffs(rows.match.words.dtype)[rows.target.dtype])
    before = np.cumsum(loose) - loose
    following = discrete & (verdict.status == DIFFERENT) & (before > 0)
    verdict.status[following] = UNDECIDED
    why = Reason(RecordCode.MAY_FOLLOW_ROUNDING)
    verdict.reasons.update(dict.fromkeys(np.flatnonzero(following).tolist(), why))


def _non_finite(rows: Rows, metrics: Metrics, verdict: Judgement, open_: Bools) -> None:
    counts: dict[int, dict[str, int]] = {}
    for row in np.flatnonzero(open_ & (metrics.mismatched > 0)).tolist():
        counts[row] = {"places": int(metrics.mismatched[row])}
    t, r = rows.target.statistics, rows.reference.statistics
    for name in ("nan", "posinf", "neginf"):
        target, reference = t[f"num_{name}"], r[f"num_{name}"]
        for row in np.flatnonzero(open_ & (target != reference) & ~np.isnan(target + reference)).tolist():
            found = counts.setdefault(row, {})
            found |= {f"target_{name}": int(target[row]), f"reference_{name}": int(reference[row])}
    for row, found in counts.items():
        known = (
            verdict.reasons.get(row) if verdict.status[row] == DIFFERENT and "places" not in found else None
        )
        verdict.reasons[row] = reason(RecordCode.NOT_FINITE, *((known,) if known else ()), **found)
        verdict.status[row], verdict.score[row] = DIFFERENT, np.inf


def _copies(rows: Rows, metrics: Metrics, verdict: Judgement) -> None:
    """Copies on several ranks that are not the same are a difference, whatever the first of them holds."""
    for name, half in (("target", rows.target), ("reference", rows.reference)):
        for record, why in half.tables.reasons.items():
            if why.code is not RecordCode.COPIES_DIFFER:
                continue
            for row in np.flatnonzero(half.record == record).tolist():
                verdict.status[row], verdict.score[row] = DIFFERENT, np.inf
                verdict.reasons[row] = replace(why, places=(("side", name),))
                far = (why.number("rel_l2") or 0.0) * np.nan_to_num(metrics.norm[row])
                metrics.difference[row] = np.fmax(metrics.difference[row], far)


def _in_node_order(rows: Rows, metrics: Metrics, verdict: Judgement) -> None:
    """Gradients that one side lists by argument, the other in an order of torch's own: they may be of other
    arguments, or turned, so that only agreement says something."""
    target, reference = (_in_autograd_order(half) for half in (rows.target, rows.reference))
    if not (target.any() or reference.any()):
        return
    settled = (verdict.status == EQUAL) | (verdict.status == WITHIN)
    unlike = rows.paired & (target != reference) & ~settled
    verdict.status[unlike], verdict.score[unlike] = UNDECIDED, np.nan
    metrics.difference[unlike] = np.nan
    of_functions = rows.phase_is("backward") & rows.slot_starts("input") & rows.kind_is("api")
    verdict.bracketable |= unlike | (of_functions & ~rows.paired)
    why = Reason(RecordCode.AUTOGRAD_ORDER_ON_ONE_SIDE)
    verdict.reasons.update(dict.fromkeys(np.flatnonzero(unlike).tolist(), why))


def _in_autograd_order(half: Half) -> Bools:
    listed = np.zeros(half.tables.records.height + 1, bool)  # the last entry is for rows without a record
    reasons = half.tables.reasons.items()
    listed[[record for record, why in reasons if why.code is RecordCode.AUTOGRAD_ORDER]] = True
    return listed[half.record]


def _other_dtype(rows: Rows, verdict: Judgement, floating: Bools) -> None:
    words = rows.match.words.dtype
    apart = np.flatnonzero(floating & (rows.target.dtype != rows.reference.dtype))
    made: dict[tuple[int, int, Reason | None], Reason] = {}
    pairs = zip(
        apart.tolist(), rows.target.dtype[apart].tolist(), rows.reference.dtype[apart].tolist(), strict=True
    )
    for row, target, reference in pairs:
        known = verdict.reasons.get(row)
        key = target, reference, known
        if key not in made:
            parts = () if known is None else (known,)
            made[key] = reason(
                RecordCode.DTYPE_DIFFERS, *parts, target=words[target], reference=words[reference]
            )
        verdict.reasons[row] = made[key]


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
