"""Gradients that one run has reduced when backward ends and the other reduces afterwards.

DistributedDataParallel reduces inside backward, a program that calls ``all_reduce`` itself after it. What the
optimizer is given tells whether that was done: where it agrees, by evidence that shows every difference, for
every parameter whose gradient differed before, the two are one computation. A factor of all of them is left
as it is: clipping to one norm takes any factor away, also a wrong one. Of some it may be one by chance: where
one rank makes most of a gradient, its part is nearly a multiple of the mean.

Where one run reduces in every microbatch and the other once, a collective carries what is left to reduce: no
two of them hold one quantity. Calls that one run makes more often are therefore judged by what comes of them,
where that is the gradient of every weight, before clipping and after it, and nothing else differs.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, EQUAL, UNDECIDED, WITHIN, Judgement
from trueup.comparing.metrics import STATISTICS, Metrics
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.thresholds import MULTIPLES_APART, REST_OF_DIFFERENCE
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status


def _reduced(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    gradients = rows.paired & rows.phase_is("param_grad")
    differing = gradients & ~rows.slot_is("clipped") & (judgement.status == DIFFERENT)
    if not differing.any() or (context.is_single_process and not _given_other_multiples(rows, differing)):
        return judgement
    agrees = gradients & rows.slot_is("clipped") & (metrics.evidence < STATISTICS)
    agrees &= (judgement.status == EQUAL) | (judgement.status == WITHIN)
    received = np.zeros(rows.match.target.num_calls + 1, bool)
    received[rows.target.call[agrees]] = True
    rest = metrics.details["residual"]
    with np.errstate(invalid="ignore"):
        is_factor = ~(rest > REST_OF_DIFFERENCE * metrics.rel_l2)  # unknown too
    if is_factor[differing].all() or not received[rows.target.call[differing]].all():
        return judgement
    why = Reason(RecordCode.REDUCED_LATER)
    return judgement.at(differing, status=UNDECIDED, score=np.nan, bracketable=True, why=why)


def _given_other_multiples(rows: StepRows, differing: Bools) -> bool:
    """Whether one run hands its optimizer another multiple of what backward left than the other does, of each
    gradient that differs: in one process, a sum that the program keeps in buffers of its own."""
    multiples = []
    for half in (rows.target, rows.reference):
        left, given = (lengths_of(rows, half, slot) for slot in ("accumulated", "clipped"))
        with np.errstate(all="ignore"):
            multiples.append((given / left)[half.call[differing]])
    return are_apart(*multiples)


def are_apart(target: Floats, reference: Floats) -> bool:
    """Whether all gradients are handed on as other multiples than the other run's."""
    with np.errstate(all="ignore"):
        apart = np.abs(target / reference - 1)
    return bool((np.nan_to_num(apart, nan=np.inf) > MULTIPLES_APART).all())


def lengths_of(rows: StepRows, half: Half, slot: str) -> Floats:
    """Of the last such gradient of each call; NaN where there is none."""
    found = np.full(half.side.num_calls, np.nan)
    at = np.flatnonzero(rows.phase_is("param_grad") & rows.slot_is(slot) & (half.call >= 0))
    found[half.call[at]] = half.statistics["l2_norm"][at]
    return found


def _reduced_in_parts(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    calls = rows.phase_is("collective")
    differing = calls & (judgement.status == DIFFERENT)
    names = rows.of_call("name")
    more_often = calls & np.isin(names, np.unique(names[calls & ~rows.paired]))
    gradients = rows.phase_is("param_grad")
    agree = (judgement.status == EQUAL) | (judgement.status == WITHIN)
    known = gradients & rows.paired & agree & (metrics.evidence < STATISTICS)
    others = (judgement.status == DIFFERENT) & ~differing
    if not differing.any() or (differing & ~more_often).any() or others.any():
        return judgement
    elsewhere = RecordCode.REDUCED_LATER, RecordCode.GATHERED_ELSEWHERE
    later = [at for at, why in judgement.reasons.items() if why.code in elsewhere]
    gradients[later] = False  # of an earlier microbatch, or a master's: the last one counts
    received = np.unique(names[known & rows.slot_is("clipped")])
    one_sided = gradients & ~rows.paired & rows.slot_is("accumulated") & np.isin(names, received)
    gradients &= ~one_sided  # after a microbatch that one run alone reduces
    if not (known & gradients).any() or (gradients & ~known).any():
        return judgement
    why = Reason(RecordCode.REDUCED_IN_PARTS)
    found = judgement.at(differing, status=UNDECIDED, score=np.nan, bracketable=True, why=why)
    return found.at(one_sided, bracketable=True)


def _judged(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    return _reduced_in_parts(context, metrics, _reduced(context, metrics, judgement))


RULE = Rule(
    apply=_judged,
    codes=(RecordCode.REDUCED_LATER, RecordCode.REDUCED_IN_PARTS),
    statuses=(Status.UNDECIDED,),
    place="after all that decides whether a record differs; before where a difference starts",
    note="0032-the-same-rows-laid-out-otherwise",
)
