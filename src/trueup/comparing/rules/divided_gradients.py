"""Gradients of a call that one run makes once and the other several times, of the very same tensors.

``f(x) ** 2`` and ``f(x) * f(x)`` are one computation. Backward sends the gradient to one call in one run,
and a part of it to each of the calls in the other; what they were made of gets the sum, as everywhere. So
what reaches one of these calls is nothing to hold against the other run's, while all that comes before and
after it in backward is compared.

Calls are the same that have one name and are given the same contents, by digest, in every place, and that
backward goes through: what is computed once more without gradients takes no part of them.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.inflow import contents
from trueup.comparing.judgement import DIFFERENT, UNDECIDED, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.matching.codes import Codes, mix, sum_by
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason, reason
from trueup.types.status import Status


def _divided(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    differ = rows.paired & rows.phase_is("backward") & (judgement.status == DIFFERENT)
    if not differ.any():
        return judgement
    target, reference = _same_calls(rows, rows.target), _same_calls(rows, rows.reference)
    more = differ & (target != reference) & (target > 0) & (reference > 0)
    why: dict[int, Reason] = {
        row: reason(RecordCode.CALLED_MORE_OFTEN, target=int(target[row]), reference=int(reference[row]))
        for row in np.flatnonzero(more).tolist()
    }
    return judgement.at(more, status=UNDECIDED, score=np.nan, bracketable=True, why=why)


def _same_calls(rows: StepRows, half: Half) -> Codes:
    """For each row how many calls on this side are the same as its own; 0 where it has none, or none that is
    given a tensor."""
    num = len(half.side.name)
    there = half.record >= 0
    differentiated = np.zeros(num, bool)
    differentiated[half.call[there & rows.phase_is("backward")]] = True
    given = there & rows.phase_is("forward") & rows.slot_starts("input")
    call = half.call[given]
    made_of = sum_by(call, mix(rows.slot[given], contents(half)[given]), num)
    same = mix(half.side.name, half.side.kind, made_of)
    same[~differentiated | (np.bincount(call, minlength=num) == 0)] = 0
    _, inverse, counts = np.unique(same, return_inverse=True, return_counts=True)
    of_call = np.where(same == 0, 0, counts[inverse.reshape(-1)])
    return np.where(half.call >= 0, of_call[np.maximum(half.call, 0)], 0)


RULE = Rule(
    apply=_divided,
    codes=(RecordCode.CALLED_MORE_OFTEN,),
    statuses=(Status.UNDECIDED,),
    place="after the bounds, which tell what differs; before regrouped, which asks whether all else agrees",
    note="0122-equivalent-calls",
)
