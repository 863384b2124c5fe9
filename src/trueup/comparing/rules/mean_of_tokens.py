"""A loss whose logits, and all that was made before them, are bit-identical.

A coarse dtype that came before it excuses nothing: the difference was made after the logits. There each
token's part may be rounded by the coarsest dtype in use, u; the mean over T tokens then differs by u over the
root of T, times a number of the order of one. Each run rounds its loss to the dtype that holds it, w: means
that are close then lie up to one unit in the last place further apart, 2 w.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, WITHIN, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.thresholds import FLOAT32, MEAN_ROUNDINGS
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.codes import RecordCode
from trueup.types.reason import reason
from trueup.types.status import Status


def _mean(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, words = context.rows, context.rows.match.words
    floating = context.floating(metrics)
    outputs = floating & rows.phase_is("forward") & rows.slot_starts("output")
    single = (outputs | rows.phase_is("loss")) & floating & (rows.reference.numel == 1)
    at = np.flatnonzero(single & (judgement.status == WITHIN) & (metrics.difference > 0))
    if not len(at):
        return judgement
    row = int(at[0])
    before = floating & rows.phase_is("param", "forward", "loss") & (np.arange(len(rows)) < row)
    if not metrics.bits_equal[before].all() or rows.target.dtype[row] != rows.reference.dtype[row]:
        return judgement
    lasts = np.array([shape[-1] if shape else 1 for shape in words.shape] + [1], float)
    made = np.flatnonzero(outputs & before & (rows.reference.numel > 1))
    if not len(made):
        return judgement
    tokens = float((rows.reference.numel / lasts[rows.reference.shape])[made[-1]])
    coarsest = float(np.nanmax(unit_roundoffs(words.dtype)[rows.reference.dtype[before]]))
    own = float(unit_roundoffs(words.dtype)[rows.reference.dtype[row]])
    tolerance = MEAN_ROUNDINGS * coarsest / np.sqrt(max(tokens, 1.0)) + 2 * own
    error = float(metrics.difference[row] / metrics.norm[row])
    if coarsest <= FLOAT32 or not error > tolerance:
        return judgement
    why = reason(RecordCode.MEAN_OF_TOKENS, tokens=tokens, dtype=_name(words.dtype, coarsest))
    return judgement.at(
        np.array([row]), status=DIFFERENT, tolerance=tolerance, score=error / tolerance, why=why
    )


def _name(dtypes: list[str], roundoff: float) -> str:
    return next(name for name in dtypes if unit_roundoffs([name])[0] == roundoff)


RULE = Rule(
    apply=_mean,
    codes=(RecordCode.MEAN_OF_TOKENS,),
    statuses=(Status.DIFFERENT,),
    place="after within_bound, whose bound knows of the coarse dtype alone; before what it follows from",
    note="0002-tolerance",
)
