"""Bounds grow by what earlier updates left in the weights, and by what gradients do to this step's update."""

from __future__ import annotations

from dataclasses import replace

from trueup.comparing.history import inherited
from trueup.comparing.judgement import Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.noise_bound import widen_updates
from trueup.comparing.rules.rule import Rule, StepContext


def _grown(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, local = context.rows, judgement.bounds.local
    extra, notes = inherited(rows, metrics, local, context.rounding.scale, context.history, context.step)
    total = local + extra
    if context.noise is not None:
        total = widen_updates(rows, metrics, total, extra, context.noise, context.factor)
    bounds = replace(judgement.bounds, inherited=extra, total=total)
    return replace(judgement, bounds=bounds, notes=(*judgement.notes, *notes))


RULE = Rule(
    apply=_grown,
    place="after the local bound: a weight inside it inherits nothing; before that of inputs, which reads it",
    note="0002-tolerance",
)
