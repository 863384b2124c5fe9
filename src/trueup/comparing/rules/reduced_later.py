"""Gradients that one run has reduced when backward ends and the other reduces afterwards.

DistributedDataParallel reduces inside backward, a program that calls ``all_reduce`` itself after it. What the
optimizer is given tells whether that was done: where it agrees, by evidence that shows every difference, for
every parameter whose gradient differed before, the two are one computation. A common factor is left as it is:
clipping to one norm takes any factor away, also a wrong one.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, EQUAL, UNDECIDED, WITHIN, Judgement
from trueup.comparing.metrics import STATISTICS, Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.thresholds import REST_OF_DIFFERENCE
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status


def _reduced(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    gradients = rows.paired & rows.phase_is("param_grad")
    differing = gradients & ~rows.slot_is("clipped") & (judgement.status == DIFFERENT)
    if not differing.any():
        return judgement
    agrees = gradients & rows.slot_is("clipped") & (metrics.evidence < STATISTICS)
    agrees &= (judgement.status == EQUAL) | (judgement.status == WITHIN)
    received = np.zeros(rows.match.target.num_calls + 1, bool)
    received[rows.target.call[agrees]] = True
    rest = metrics.details["residual"]
    with np.errstate(invalid="ignore"):
        is_factor = ~(rest > REST_OF_DIFFERENCE * metrics.rel_l2)  # unknown too
    if is_factor[differing].any() or not received[rows.target.call[differing]].all():
        return judgement
    why = Reason(RecordCode.REDUCED_LATER)
    return judgement.at(differing, status=UNDECIDED, score=np.nan, bracketable=True, why=why)


RULE = Rule(
    apply=_reduced,
    codes=(RecordCode.REDUCED_LATER,),
    statuses=(Status.UNDECIDED,),
    place="after all that decides whether a record differs; before where a difference starts",
    note="0032-the-same-rows-laid-out-otherwise",
)
