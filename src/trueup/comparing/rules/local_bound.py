"""What this step alone explains: rounding, or the reference's own noise where it was measured."""

from __future__ import annotations

from dataclasses import replace

from trueup.comparing.judgement import Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.noise_bound import noise_bound
from trueup.comparing.rules.rule import Rule, StepContext


def _bounded(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    local = context.rounding.absolute
    if context.noise is not None:
        local = noise_bound(context.rows, metrics, context.rounding, context.noise, context.factor)
    return replace(judgement, bounds=replace(judgement.bounds, local=local, total=local))


RULE = Rule(
    apply=_bounded,
    place="first of the bounds: what is inherited is measured by what it leaves over",
    note="0002-tolerance",
)
