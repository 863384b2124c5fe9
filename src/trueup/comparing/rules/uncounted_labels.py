"""Labels that differ where none is counted: 0 under a mask in one run, the ignored index in the other.

A label acts through the loss alone. Where the loss and every gradient that modules are sent back agree, the
labels that differ are counted in neither run. A label that counts changes the gradient of its own row by as
much as a row's gradient can be long, and so the gradient of n rows by at least 1/sqrt(n) of its norm: it must
agree far better than that, whatever its tolerance is.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, EQUAL, UNDECIDED, WITHIN, Judgement
from trueup.comparing.metrics import STATISTICS, Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.thresholds import UNCOUNTED
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status


def _uncounted(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    of_loss = rows.paired & rows.phase_is("loss")
    labels = of_loss & ~rows.slot_is("value") & ((judgement.status == DIFFERENT) | _may_follow(judgement))
    if not labels.any():
        return judgement
    agrees = (judgement.status == EQUAL) | (judgement.status == WITHIN)
    value = of_loss & rows.slot_is("value")
    sent = rows.paired & rows.phase_is("backward") & rows.kind_is("module") & rows.slot_starts("output")
    sent &= rows.target.numel >= rows.target.numel[labels].max()  # not of the loss itself, which is 1
    found = np.zeros(len(rows), bool)
    for microbatch in np.unique(rows.microbatch[labels]).tolist():
        here = rows.microbatch == microbatch
        known = np.flatnonzero(here & (sent | value))
        is_shown = bool((here & sent).any() and (metrics.evidence[known] < STATISTICS).all())
        if not is_shown or not agrees[known].all():
            continue
        num = rows.target.numel[labels & here].max()
        gap = np.where(judgement.status == EQUAL, 0.0, metrics.rel_l2)[here & sent]
        if (gap < UNCOUNTED / np.sqrt(num)).all():
            found |= labels & here
    why = Reason(RecordCode.UNCOUNTED_LABELS)
    return judgement.at(found, status=UNDECIDED, score=np.nan, bracketable=True, why=why)


def _may_follow(judgement: Judgement) -> Bools:
    """What ``rounded_indices`` leaves open: whatever it follows from, what comes of it is asked here."""
    rows = [row for row, why in judgement.reasons.items() if why.code is RecordCode.MAY_FOLLOW_ROUNDING]
    found = np.zeros(len(judgement.status), bool)
    found[rows] = judgement.status[rows] == UNDECIDED
    return found


RULE = Rule(
    apply=_uncounted,
    codes=(RecordCode.UNCOUNTED_LABELS,),
    statuses=(Status.UNDECIDED,),
    place="after all that decides whether a record differs: it asks whether the loss and its gradients do",
    note="0032-the-same-rows-laid-out-otherwise",
)
