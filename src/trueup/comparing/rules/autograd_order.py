"""Gradients that one side lists by argument, the other in an order of torch's own.

They may be of other arguments, or turned, so that only agreement says something.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import EQUAL, UNDECIDED, WITHIN, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import Half
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status


def _in_node_order(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    target, reference = (_in_autograd_order(half) for half in (rows.target, rows.reference))
    if not (target.any() or reference.any()):
        return judgement
    settled = (judgement.status == EQUAL) | (judgement.status == WITHIN)
    unlike = rows.paired & (target != reference) & ~settled
    of_functions = rows.phase_is("backward") & rows.slot_starts("input") & rows.kind_is("api")
    why = Reason(RecordCode.AUTOGRAD_ORDER_ON_ONE_SIDE)
    judged = judgement.at(unlike, status=UNDECIDED, score=np.nan, difference=np.nan, why=why)
    return judged.at(unlike | (of_functions & ~rows.paired), bracketable=True)


def _in_autograd_order(half: Half) -> Bools:
    listed = np.zeros(half.tables.records.height + 1, bool)  # the last entry is for rows without a record
    reasons = half.tables.reasons.items()
    listed[[record for record, why in reasons if why.code is RecordCode.AUTOGRAD_ORDER]] = True
    return listed[half.record]


RULE = Rule(
    apply=_in_node_order,
    codes=(RecordCode.AUTOGRAD_ORDER_ON_ONE_SIDE,),
    statuses=(Status.UNDECIDED,),
    place="last of the statuses: of what may be other arguments' gradients no difference means anything",
    note="0020-what-a-dump-cannot-hold",
)
