"""Copies on several ranks that are not the same are a difference, even if the first of them agrees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.comparing.judgement import DIFFERENT, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.codes import RecordCode
from trueup.types.status import Status


def _copies(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    for name, half in (("target", rows.target), ("reference", rows.reference)):
        for record, why in half.tables.reasons.items():
            if why.code is not RecordCode.COPIES_DIFFER:
                continue
            at = np.flatnonzero(half.record == record)
            far = (why.number("rel_l2") or 0.0) * np.nan_to_num(metrics.norm[at])
            judgement = judgement.at(
                at,
                status=DIFFERENT,
                score=np.inf,
                difference=np.fmax(judgement.difference[at], far),
                why=dict.fromkeys(at.tolist(), replace(why, places=(("side", name),))),
            )
    return judgement


RULE = Rule(
    apply=_copies,
    codes=(RecordCode.COPIES_DIFFER,),
    statuses=(Status.DIFFERENT,),
    place="after all that compare the two runs: copies that differ within one of them count even so",
    note="0013-layouts-merged-before-matching",
)
