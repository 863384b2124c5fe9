"""What backward left in weights whose masters the optimizer has.

A program that keeps copies of its weights for the optimizer gathers their gradients itself, after each
microbatch or at the end, and clears what backward left when it likes. Where the gradients of all masters of a
weight's shape agree, by evidence that shows every difference, nothing comes of what was left in the weight.
So where the masters are flat, of one dimension and as many numbers as all such weights, whole or a part on
each process, and all of them agree.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, EQUAL, UNDECIDED, WITHIN, Judgement
from trueup.comparing.metrics import STATISTICS, Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.numerics.flat_parts import covers
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status


def _judged(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    gradients, names = rows.phase_is("param_grad"), rows.of_call("name")
    given, local = gradients & rows.slot_is("clipped"), gradients & rows.slot_starts("local")
    left = gradients & rows.slot_is("accumulated") & ~np.isin(names, names[given])
    differing = left & rows.paired & (judgement.status == DIFFERENT)
    if not differing.any():
        return judgement
    agree = rows.paired & (metrics.evidence < STATISTICS)
    agree &= (judgement.status == EQUAL) | (judgement.status == WITHIN)
    of_masters = given & ~np.isin(names, names[local])
    shapes = rows.target.shape
    known = np.setdiff1d(shapes[of_masters & agree], shapes[of_masters & ~agree])
    why = Reason(RecordCode.GATHERED_ELSEWHERE)
    explained = differing & (np.isin(shapes, known) | _in_flat(context, of_masters, agree, left))
    return judgement.at(explained, status=UNDECIDED, score=np.nan, bracketable=True, why=why)


def _in_flat(context: StepContext, of_masters: Bools, agree: Bools, left: Bools) -> bool:
    """Whether all masters are flat and agree, and there is room in them for all weights that they are of."""
    rows = context.rows
    is_flat = np.array([*(len(shape) == 1 for shape in rows.match.words.shape), False])
    if not of_masters.any() or not (agree & is_flat[rows.target.shape])[of_masters].all():
        return False
    _, weights = np.unique(rows.of_call("name")[left], return_index=True)
    numbers = rows.target.numel[np.flatnonzero(left)[weights]]
    sizes = [int(one) for one in rows.target.numel[of_masters]]
    return covers(sizes, int(np.nansum(numbers)), context.num_ranks)


RULE = Rule(
    apply=_judged,
    codes=(RecordCode.GATHERED_ELSEWHERE,),
    statuses=(Status.UNDECIDED,),
    place="after all that decides whether a record differs; before where a difference starts",
    note="0064-what-comes-of-it",
)
