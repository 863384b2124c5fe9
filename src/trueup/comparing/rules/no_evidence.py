"""Pairs without evidence that both sides hold."""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import Judgement
from trueup.comparing.metrics import NONE, Metrics
from trueup.comparing.row_order import BOUNDS, CHOSEN, DEALT
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason, reason
from trueup.types.status import Status


def _undecided(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    target, reference = rows.target, rows.reference
    shapes = [str(list(s)) for s in rows.match.words.shape]
    exchanged = rows.phase_is("collective")
    dealt, chosen, bounds = (
        np.array([layout.label == label for layout in rows.layouts] + [False])[rows.layout]
        for label in (DEALT, CHOSEN, BOUNDS)
    )
    reasons: dict[int, Reason] = {}
    harmless = []
    for row in np.flatnonzero(rows.paired & (metrics.evidence == NONE)).tolist():
        lacking = target.summary[row] < 0, reference.summary[row] < 0
        if any(lacking):
            reasons[row] = _no_summary(rows, row)
            harmless += [row] if all(lacking) else []
        elif dealt[row]:
            reasons[row] = Reason(RecordCode.ROWS_DEALT_OTHERWISE)
            harmless.append(row)  # what comes of all rows together is compared
        elif chosen[row]:
            reasons[row] = Reason(RecordCode.TOKENS_CHOSEN_OTHERWISE)
            harmless.append(row)  # what comes of all tokens together is compared
        elif bounds[row]:
            reasons[row] = Reason(RecordCode.BOUNDARIES_REORDERED)
            harmless.append(row)  # they are those of the same sequences
        elif target.shape[row] != reference.shape[row]:
            sides = {"target": shapes[target.shape[row]], "reference": shapes[reference.shape[row]]}
            reasons[row] = reason(RecordCode.SHAPE_DIFFERS, **sides)
            harmless += [row] if exchanged[row] else []  # in other buckets: what comes of it is compared
        else:
            other_bits = metrics.known_bits[row] and not metrics.bits_equal[row]
            reasons[row] = Reason(RecordCode.DIGESTS_DIFFER if other_bits else RecordCode.NO_COMMON_EVIDENCE)
    return judgement.at(np.array(harmless, np.int64), bracketable=True, why=reasons)


def _no_summary(rows: StepRows, row: int) -> Reason:
    lacking = []
    for name, half in (("target", rows.target), ("reference", rows.reference)):
        if half.summary[row] < 0:
            why = half.tables.reason_of(int(half.record[row]))
            lacking.append(reason(RecordCode.SIDE_WITHOUT_SUMMARY, *((why,) if why else ()), side=name))
    return Reason(RecordCode.NO_SUMMARY, parts=tuple(lacking))


RULE = Rule(
    apply=_undecided,
    codes=(
        RecordCode.NO_SUMMARY,
        RecordCode.SIDE_WITHOUT_SUMMARY,
        RecordCode.SHAPE_DIFFERS,
        RecordCode.NO_COMMON_EVIDENCE,
        RecordCode.DIGESTS_DIFFER,
        RecordCode.ROWS_DEALT_OTHERWISE,
        RecordCode.TOKENS_CHOSEN_OTHERWISE,
        RecordCode.BOUNDARIES_REORDERED,
    ),
    statuses=(Status.UNDECIDED,),
    place="any place before the rules that append to a reason; its rows are of no other rule",
    note="0002-tolerance",
)
