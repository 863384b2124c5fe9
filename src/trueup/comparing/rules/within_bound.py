"""Floating tensors: the difference against its bound."""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, UNDECIDED, WITHIN, Judgement
from trueup.comparing.metrics import STATISTICS, Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status


def _floating(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    floating, bound, difference = context.floating(metrics), judgement.bounds.total, metrics.difference
    with np.errstate(divide="ignore", invalid="ignore"):
        tolerance = bound / metrics.norm
        score = difference / bound
    tolerance = np.where(metrics.norm == 0, np.where(bound > 0, np.inf, 0.0), tolerance)
    score = np.where(difference == 0, 0.0, score)
    # A bound is a part of a norm: the record's own, or of what it was made from.
    sizeless = np.isnan(metrics.norm) & (difference > 0) & ~(bound > 0)
    unknown = np.isnan(difference) | np.isnan(bound) | sizeless
    status = np.where(unknown, UNDECIDED, np.where(difference <= bound, WITHIN, DIFFERENT))
    judged = judgement.at(
        floating, status=status[floating], tolerance=tolerance[floating], score=score[floating]
    )
    weak = floating & (metrics.evidence == STATISTICS) & (status == WITHIN) & metrics.known_bits
    judged = judged.at(floating & unknown, why=Reason(RecordCode.NOTHING_FINITE))
    judged = judged.at(floating & sizeless, why=Reason(RecordCode.NO_NORM))
    return judged.at(weak, why=Reason(RecordCode.LOWER_BOUND))


RULE = Rule(
    apply=_floating,
    codes=(RecordCode.NOTHING_FINITE, RecordCode.NO_NORM, RecordCode.LOWER_BOUND),
    statuses=(Status.WITHIN_NOISE, Status.DIFFERENT, Status.UNDECIDED),
    place="after the bounds; before all that know better than the size of a difference",
    note="0002-tolerance",
)
