"""Integers that follow from values already differing by rounding (an argmax) decide nothing by themselves.

What the model is given before anything of its microbatch is computed was read, and follows from nothing,
unless the step has called a model without gradients before, which may have generated it.

Where the call gives the values with them (a router, a top-k) and those agree, in one dtype, what was chosen
is a near tie: both choices are as good, and what comes of them is compared by itself. The gradient of a value
that was chosen otherwise is that of another value: the whole may differ by both their largest elements, once
for each.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.inflow import given_on
from trueup.comparing.judgement import DIFFERENT, EQUAL, UNDECIDED, WITHIN, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status


def _follow_up(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    loose = rows.paired & ~metrics.bits_equal & (judgement.status == WITHIN)
    loose &= ~np.isnan(unit_roundoffs(rows.match.words.dtype)[rows.target.dtype])
    before = np.cumsum(loose) - loose
    discrete = context.comparable(metrics) & ~context.floating(metrics)
    following = discrete & (judgement.status == DIFFERENT) & (before > 0) & ~_read(rows, loose)
    judgement = judgement.at(following, status=UNDECIDED, why=Reason(RecordCode.MAY_FOLLOW_ROUNDING))
    call, outputs = rows.target.call, rows.phase_is("forward") & rows.slot_starts("output")
    agrees = (judgement.status == EQUAL) | (judgement.status == WITHIN)
    agrees &= rows.target.dtype == rows.reference.dtype
    values = outputs & context.floating(metrics)
    tie = np.zeros(rows.match.target.num_calls + 1, bool)
    tie[call[values & agrees]] = True
    tie[call[values & ~agrees]] = False
    tie[-1] = False  # of the reference alone
    tied = following & outputs & tie[call]
    choices = given_on(rows, tied, following & rows.slot_starts("input"))  # of a near tie
    judgement = judgement.at(tied | choices, bracketable=True)
    of_others = _of_other_choices(rows, judgement, following)
    why = Reason(RecordCode.MAY_FOLLOW_ROUNDING)
    return judgement.at(of_others, status=UNDECIDED, why=why, bracketable=True)


def _of_other_choices(rows: StepRows, judgement: Judgement, following: Bools) -> Bools:
    """Gradients of a call's values that lie as indices of the same call do, which follow from rounding; no
    further apart than the indices that differ explain: these are integers, as many as the square of their
    difference at most."""
    shapes = np.full(rows.match.target.num_calls + 1, -1, np.int64)
    others = np.zeros(len(shapes))
    for row in np.flatnonzero(following & (rows.target.call >= 0)).tolist():
        shapes[rows.target.call[row]] = rows.target.shape[row]
        others[rows.target.call[row]] = judgement.difference[row]
    call = np.where(rows.paired, rows.target.call, -1)
    laid_alike = (shapes[call] >= 0) & (shapes[call] == rows.target.shape)
    largest = sum(
        np.maximum(np.abs(half.statistics["minimum"]), np.abs(half.statistics["maximum"]))
        for half in (rows.target, rows.reference)
    )
    with np.errstate(invalid="ignore"):  # infinities explain nothing
        explained = judgement.difference <= largest * others[call]
    return np.asarray(rows.phase_is("backward") & (judgement.status == DIFFERENT) & laid_alike & explained)


def _read(rows: StepRows, loose: Bools) -> Bools:
    """Rows of what the outermost training calls are given first in their microbatch."""
    at = np.arange(len(rows))
    forward = rows.phase_is("forward")
    given = forward & rows.slot_starts("input") & rows.kind_is("module") & rows.mode_is("train")
    given &= rows.of_call("parent") < 0
    without_gradients = np.flatnonzero(forward & rows.mode_is("eval"))
    given &= at < (without_gradients[0] if len(without_gradients) else len(rows))
    computed = loose & rows.phase_is("forward", "loss")
    for microbatch in np.unique(rows.microbatch[given]):
        here = np.flatnonzero(computed & (rows.microbatch == microbatch))
        if len(here):
            given &= (rows.microbatch != microbatch) | (at < here[0])
    return given


RULE = Rule(
    apply=_follow_up,
    codes=(RecordCode.MAY_FOLLOW_ROUNDING,),
    statuses=(Status.UNDECIDED,),
    place="after within_bound and exact: it needs what differs by rounding, and what differs exactly",
    note="0002-tolerance",
)
