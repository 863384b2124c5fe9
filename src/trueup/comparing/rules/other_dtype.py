"""Pairs of two floating dtypes: the reason says so, with any status."""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason, reason


def _other_dtype(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, words = context.rows, context.rows.match.words.dtype
    apart = np.flatnonzero(context.floating(metrics) & (rows.target.dtype != rows.reference.dtype))
    made: dict[tuple[int, int, Reason | None], Reason] = {}
    reasons: dict[int, Reason] = {}
    pairs = rows.target.dtype[apart].tolist(), rows.reference.dtype[apart].tolist()
    for row, target, reference in zip(apart.tolist(), *pairs, strict=True):
        known = judgement.reasons.get(row)
        key = target, reference, known
        if key not in made:
            parts = () if known is None else (known,)
            sides = {"target": words[target], "reference": words[reference]}
            made[key] = reason(RecordCode.DTYPE_DIFFERS, *parts, **sides)
        reasons[row] = made[key]
    return judgement.at(apart, why=reasons)


RULE = Rule(
    apply=_other_dtype,
    codes=(RecordCode.DTYPE_DIFFERS,),
    place="after every rule whose reason it takes in as a part; before copies, which replaces it",
    note="0002-tolerance",
)
