"""Numbers that ranks add up on the way to the norm which gradients are clipped to.

Ranks may put the squares of their gradients together in any parts: what one rank counts for all, what all
have alike and each counts in part, what is added after the reduction. No part of one program is then a part
of the other's. Where both clip, so that every gradient is handed on as a multiple of itself, and all agree
before and after, the norms agree. The loss that a program reports on the way is judged as it is.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, EQUAL, UNDECIDED, WITHIN, Judgement
from trueup.comparing.metrics import STATISTICS, Metrics
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.rules.reduced_later import lengths_of
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.thresholds import MULTIPLES_APART
from trueup.numerics.dtypes import DTYPES
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status


def _judged(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    differing = rows.paired & (judgement.status == DIFFERENT)
    if not differing.any() or (differing & ~_numbers_before_clipping(rows)).any():
        return judgement
    calls = rows.target.call
    numbers = rows.phase_is("collective") & np.isin(calls, calls[differing])
    gradients = rows.phase_is("param_grad") & (rows.slot_is("accumulated") | rows.slot_is("clipped"))
    agree = rows.paired & (metrics.evidence < STATISTICS)
    agree &= (judgement.status == EQUAL) | (judgement.status == WITHIN)
    halves = (rows.target, rows.reference)
    if (gradients & ~agree).any() or not all(_clips(rows, half) for half in halves):
        return judgement
    if any(_is_loss(rows, half, numbers).any() for half in halves):
        return judgement
    why = Reason(RecordCode.NORM_IN_PARTS)
    return judgement.at(differing, status=UNDECIDED, score=np.nan, bracketable=True, why=why)


def _numbers_before_clipping(rows: StepRows) -> Bools:
    """Rows of single numbers of collectives, between the last sum of a gradient and the first one that was
    handed to an optimizer."""
    gradients, at = rows.phase_is("param_grad"), np.arange(len(rows))
    left, given = (np.flatnonzero(gradients & rows.slot_is(slot)) for slot in ("accumulated", "clipped"))
    if not len(left) or not len(given):
        return np.zeros(len(rows), bool)
    between = (at > left.max()) & (at < given.min())
    single = (rows.target.numel == 1) & (rows.reference.numel == 1)
    return np.asarray(rows.phase_is("collective") & single & between)


def _clips(rows: StepRows, half: Half) -> bool:
    """Whether every gradient is handed on as a multiple of itself that is not 1."""
    left, given = (lengths_of(rows, half, slot) for slot in ("accumulated", "clipped"))
    with np.errstate(all="ignore"):
        multiples: Floats = (given / left)[np.isfinite(given) & (left > 0)]
    return bool(len(multiples)) and bool((np.abs(multiples - 1) > MULTIPLES_APART).all())


def _is_loss(rows: StepRows, half: Half, of: Bools) -> Bools:
    """Which of these numbers are a loss of the run, of a microbatch or of all, perhaps in bfloat16."""
    losses = half.statistics["mean"][rows.phase_is("loss") & rows.slot_is("value")]
    losses = losses[np.isfinite(losses)]
    known = np.array([*losses, losses.sum(), losses.mean() if len(losses) else 0.0])
    numbers = half.statistics["mean"][of][:, None]
    return np.asarray((np.abs(numbers - known) <= DTYPES["bfloat16"].eps * np.abs(known)).any(axis=1))


RULE = Rule(
    apply=_judged,
    codes=(RecordCode.NORM_IN_PARTS,),
    statuses=(Status.UNDECIDED,),
    place="after gradients that are reduced later, which leave calls of another number of elements",
    note="0064-what-comes-of-it",
)
