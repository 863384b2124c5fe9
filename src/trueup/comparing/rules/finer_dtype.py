"""Records of another dtype on one side, good for that dtype, followed by errors that exceed tolerance.

Held against the finer dtype they are origins; where most of a run is in another dtype, where nothing beyond
tolerance follows, or only after an origin of its own, they stay what they are. Tolerance and score become
what the finer dtype gives.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import AMPLIFIED, ORIGIN, WITHIN, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.thresholds import DTYPES_APART, FINER
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.codes import RecordCode
from trueup.types.reason import reason
from trueup.types.status import Status


def _coarser(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, attribution, words = context.rows, judgement.attribution, context.rows.match.words.dtype
    made = np.flatnonzero(attribution.status == ORIGIN)
    grown = np.flatnonzero(attribution.status == AMPLIFIED)
    grown = grown[grown < made[0]] if len(made) else grown
    if not len(grown):
        return judgement
    table = unit_roundoffs(words)
    finer = np.fmin(table[rows.target.dtype], table[rows.reference.dtype])
    apart = rows.paired & (rows.target.dtype != rows.reference.dtype) & ~np.isnan(finer)
    if apart.sum() > DTYPES_APART * max(int((rows.paired & ~np.isnan(finer)).sum()), 1):
        return judgement
    error = attribution.error
    found = apart & (judgement.status == WITHIN) & (error > FINER * finer) & (error > attribution.explained)
    found &= np.arange(len(rows)) < grown[-1]
    at = np.flatnonzero(found)
    allowed = (FINER * finer)[at]
    reasons = {}
    for row in at.tolist():
        target, reference = (words[half.dtype[row]] for half in (rows.target, rows.reference))
        code = RecordCode.DTYPE_DIFFERS_WITH_EFFECT
        reasons[row] = reason(code, target=target, reference=reference)
    judged = judgement.at(at, tolerance=allowed, score=error[at] / allowed, why=reasons)
    return judged.attributed(at, ORIGIN)


RULE = Rule(
    apply=_coarser,
    codes=(RecordCode.DTYPE_DIFFERS_WITH_EFFECT,),
    statuses=(Status.ORIGIN,),
    place="right after origin: what it found amplified is what a coarser dtype is blamed for",
    note="0007-noise-and-origin",
)
