"""NaN and infinities that one run alone has, and that come from a gradient or from a weight.

Gradients after clipping, updated weights, optimizer state and weights of the next step: one such gradient
makes the total norm, and with it every clipped gradient, NaN.
"""

from __future__ import annotations

from dataclasses import replace

from trueup.comparing.history import left_not_finite, not_finite_apart
from trueup.comparing.judgement import Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext


def _passed_on(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, before = context.rows, left_not_finite(context.rows, context.history)
    found = not_finite_apart(rows)
    clipped = rows.phase_is("param_grad") & rows.slot_is("clipped")
    given = found & rows.phase_is("param", "param_grad")
    out = found & clipped & bool((given & ~clipped).any())
    reached = before.copy()
    reached[rows.weight[given]] = True
    out |= found & rows.phase_is("optimizer") & reached[rows.weight]
    out |= found & rows.phase_is("param") & before[rows.weight]
    return replace(judgement, followed=judgement.followed | out)


RULE = Rule(
    apply=_passed_on,
    place="before followed, which makes statuses of it; after widened for no reason: either adds rows",
    note="0017-received-is-not-made",
)
