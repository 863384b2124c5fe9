"""A weight's own gradient that one run alone has: frozen, detached, or left out of the loss.

The first such weight in backward's order is an origin, unless more than half of the weights are such: then
the two were captured otherwise. Not so where one run lacks what became of the gradient too, of which both
show that of another weight: those weights were not trained there, however many they are.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import ORIGIN, UNMATCHED, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import reason
from trueup.types.status import Status

LOCAL = "local"


def _first_absent(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    local = rows.phase_is("param_grad") & rows.slot_starts(LOCAL) & _known_on_both(rows)
    at = np.flatnonzero(local & (judgement.status == UNMATCHED) & ~_is_there(rows, local & rows.paired))
    in_doubt = at[~_lacks_what_became(rows, judgement)[at]]
    if not len(at) or 2 * len(in_doubt) > int(local.sum()):
        return judgement
    lacking = "reference" if rows.target.record[at[0]] >= 0 else "target"
    why = reason(RecordCode.GRADIENT_ABSENT, side=lacking)
    return judgement.at(at[:1], score=np.inf, why=why).attributed(at[:1], ORIGIN)


def _is_there(rows: StepRows, paired: Bools) -> Bools:
    """Rows of weights of which both have a gradient of another backward in this step: what one of them lacks
    is a backward. A pipeline's schedule counts microbatches otherwise; what they add up to is compared."""
    names = rows.of_call("name")
    return np.isin(names, np.unique(names[paired]))


def _lacks_what_became(rows: StepRows, judgement: Judgement) -> Bools:
    """Rows of weights whose gradient one run lacks after backward too, where both have another's then. Not of
    dumps, which hold one gradient of many, and not of two implementations."""
    later = rows.phase_is("param_grad") & ~rows.slot_starts(LOCAL)
    dumped = bool(rows.target.tables.gaps or rows.reference.tables.gaps)
    if not (later & rows.paired).any() or dumped or rows.match.bridge is not None:
        return np.zeros(len(rows), bool)
    names = rows.of_call("name")
    return np.isin(names, np.unique(names[later & (judgement.status == UNMATCHED)]))


def _known_on_both(rows: StepRows) -> Bools:
    """Rows whose call, here the weight, the other side has too."""
    calls = rows.match.calls
    out = np.zeros(len(rows), bool)
    for half, partner in ((rows.target, calls.reference_of), (rows.reference, calls.target_of)):
        here = half.call >= 0
        out[here] |= partner[half.call[here]] >= 0
    return out


RULE = Rule(
    apply=_first_absent,
    codes=(RecordCode.GRADIENT_ABSENT,),
    statuses=(Status.ORIGIN,),
    place="after one_sided, whose reason it replaces, and after origin, which knows pairs alone",
    note="0009-rounding-that-stands-alone",
)
