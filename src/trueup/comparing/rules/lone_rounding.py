"""The first difference of a run, no larger than rounding, where the module's like came out bit for bit equal.

A coarse dtype hides a missing upcast: what it changes is no larger than one rounding. But what changes
rounding innocently, another device, thread count, library or kernel, changes it in every module of a kind.
Where all that ran before agrees bit for bit, others of the same kind among it, the code of the first that
does not is another.

So is what differs first in a later step, where every record of the steps before is bit-identical and kernels
repeat themselves: both sides have made the same bits of that module before.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import ORIGIN, WITHIN, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.owner import owner_of_row
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.thresholds import LONE_LEAST, LONE_ROUNDOFFS
from trueup.matching.names import like
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.codes import RecordCode
from trueup.types.reason import reason
from trueup.types.status import Status


def least_rounding(roundoff: float) -> float:
    """The relative difference from which on a tensor of this unit roundoff was computed otherwise."""
    return max(LONE_LEAST, LONE_ROUNDOFFS * roundoff)


def _lone(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, error = context.rows, judgement.attribution.error
    apart = np.flatnonzero(error > 0)
    if not len(apart) or not rows.phase_is("forward")[apart[0]]:
        return judgement
    row = int(apart[0])
    table = unit_roundoffs(rows.match.words.dtype)
    roundoff = float(np.fmax(table[rows.target.dtype[row]], table[rows.reference.dtype[row]]))
    if judgement.status[row] != WITHIN or np.isnan(roundoff) or error[row] < least_rounding(roundoff):
        return judgement
    owner = owner_of_row(rows, row)
    peers = _equal_like(rows, metrics, row, owner) if owner else set()
    if owner is None or not (peers or context.repeats):
        return judgement
    least = least_rounding(roundoff)
    why = reason(RecordCode.ONE_ROUNDING, like=like(owner), num_alike=len(peers))
    if not peers:
        why = reason(RecordCode.AFTER_EQUAL_STEPS, step=context.step)
    judged = judgement.at(np.array([row]), tolerance=least, score=error[row] / least, why=why)
    return judged.attributed(np.array([row]), ORIGIN)


def _equal_like(rows: StepRows, metrics: Metrics, row: int, owner: str) -> set[str]:
    """Modules of the owner's kind whose record in the same place, before this one, is bit-identical."""
    names = rows.match.words.name
    called, classes = rows.of_call("name"), rows.of_call("type")
    kind = like(names[called[row]])
    same = metrics.bits_equal[:row] & (rows.phase[:row] == rows.phase[row])
    same &= (rows.slot[:row] == rows.slot[row]) & (classes[:row] == classes[row])
    found = {
        owner_of_row(rows, at) for at in np.flatnonzero(same).tolist() if like(names[called[at]]) == kind
    }
    return {one for one in found if one and one != owner and like(one) == like(owner)}


RULE = Rule(
    apply=_lone,
    codes=(RecordCode.ONE_ROUNDING, RecordCode.AFTER_EQUAL_STEPS),
    statuses=(Status.ORIGIN,),
    place="after clipped, which takes origins back: a row that stands for its kind stays one",
    note="0009-rounding-that-stands-alone",
)
