"""Equal digests."""

from __future__ import annotations

from trueup.comparing.judgement import EQUAL, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.status import Status


def _equal(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    return judgement.at(context.rows.paired & metrics.bits_equal, status=EQUAL, score=0.0)


RULE = Rule(
    apply=_equal,
    statuses=(Status.EQUAL,),
    place="after every bound: equal bits need none; before not_finite, as equal bits hold the same NaN",
    note="0001-digest-mixes-bits",
)
