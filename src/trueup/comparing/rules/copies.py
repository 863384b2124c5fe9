"""Copies on several ranks that are not the same are a difference, even if the first of them agrees.

Not where the optimizer reduces gradients itself, as a ZeRO optimizer written by hand does in its ``step``:
what ranks hold in ``grad`` is then their own part, and the weight moves to the same bits on all of them, as
the reference's does. Without the reduction the ranks' weights differ, or, where each rank updates a part for
all, the update is that of other rows: Adam's signs and the gradients of other rows differ by about the
update's length, of which half is allowed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.comparing.judgement import DIFFERENT, EQUAL, UNDECIDED, WITHIN, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status


def _copies(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    apart = np.zeros(len(rows), bool)
    for name, half in (("target", rows.target), ("reference", rows.reference)):
        for record, why in half.tables.reasons.items():
            if why.code is not RecordCode.COPIES_DIFFER:
                continue
            at = np.flatnonzero(half.record == record)
            apart[at] = True
            far = (why.number("rel_l2") or 0.0) * np.nan_to_num(metrics.norm[at])
            judgement = judgement.at(
                at,
                status=DIFFERENT,
                score=np.inf,
                difference=np.fmax(judgement.difference[at], far),
                why=dict.fromkeys(at.tolist(), replace(why, places=(("side", name),))),
            )
    reduced = apart & _reduced_by_optimizer(context, metrics, judgement, apart)
    why = Reason(RecordCode.REDUCED_BY_OPTIMIZER)
    return judgement.at(reduced, status=UNDECIDED, score=np.nan, bracketable=True, why=why)


def _reduced_by_optimizer(
    context: StepContext, metrics: Metrics, judgement: Judgement, apart: Bools
) -> Bools:
    """Gradients of weights that all ranks, and the other run, moved alike."""
    rows = context.rows
    agrees = (judgement.status == EQUAL) | (judgement.status == WITHIN)
    updated = rows.phase_is("optimizer") & rows.slot_is("param") & ~apart & agrees
    with np.errstate(invalid="ignore"):
        updated &= metrics.difference < metrics.update_lengths[rows.weight] / 2
    alike = np.zeros(rows.num_weights + 1, bool)
    alike[rows.weight[updated]] = True
    return np.asarray(rows.phase_is("param_grad") & alike[rows.weight])


RULE = Rule(
    apply=_copies,
    codes=(RecordCode.COPIES_DIFFER, RecordCode.REDUCED_BY_OPTIMIZER),
    statuses=(Status.DIFFERENT, Status.UNDECIDED),
    place="after all that compare the two runs: copies that differ within one of them count even so",
    note="0046-coarse-dtypes-and-two-processes",
)
