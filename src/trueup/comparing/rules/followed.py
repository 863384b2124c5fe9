"""A difference passed on from inputs, or held by a tolerance widened for them, is not an origin."""

from __future__ import annotations

from trueup.comparing.judgement import ORIGIN, PROPAGATED, WITHIN, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.status import Status


def _propagated(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    merely = (judgement.status == WITHIN) | (judgement.attribution.status == ORIGIN)
    return judgement.attributed(judgement.followed & merely, PROPAGATED)


RULE = Rule(
    apply=_propagated,
    statuses=(Status.PROPAGATED,),
    place="last: no rule may call a difference of the inputs an origin",
    note="0017-received-is-not-made",
)
