"""Integers and booleans: rounding excuses none."""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, WITHIN, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.status import Status


def _exact(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    discrete = context.comparable(metrics) & ~context.floating(metrics)
    same = metrics.difference == 0
    status, score = np.where(same, WITHIN, DIFFERENT), np.where(same, 0.0, np.inf)
    judged = judgement.at(discrete, status=status[discrete], score=score[discrete], tolerance=0.0)
    same_dtype = rows.target.dtype == rows.reference.dtype
    hidden = discrete & same & metrics.known_bits & same_dtype  # bits differ where no statistic shows it
    return judged.at(hidden, status=DIFFERENT, score=np.inf)


RULE = Rule(
    apply=_exact,
    statuses=(Status.WITHIN_NOISE, Status.DIFFERENT),
    place="beside within_bound, of other rows; before rounded_indices, which takes some of it back",
    note="0002-tolerance",
)
