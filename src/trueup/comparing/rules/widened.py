"""What agrees only by a tolerance widened for a difference that itself exceeds tolerance.

Of a gradient or weight in this step, or of an earlier step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.comparing.judgement import DIFFERENT, WITHIN, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext


def _followed(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, bounds, status = context.rows, judgement.bounds, judgement.status
    beyond = status == DIFFERENT
    widened = (bounds.inherited > 0) & (metrics.difference > bounds.local) & (status == WITHIN)
    of_call = np.zeros(rows.match.target.num_calls + 1, bool)
    of_call[rows.target.call[beyond & rows.phase_is("param", "param_grad")]] = True
    of_call[-1] = False
    updated = rows.phase_is("optimizer") & of_call[rows.target.call]
    followed = widened & (context.history.exceeded | updated)
    left = rows.phase_is("param", "param_grad", "optimizer")
    exceeded = bool((left & (beyond | followed)).any())
    return replace(judgement, followed=judgement.followed | followed, exceeded=exceeded)


RULE = Rule(
    apply=_followed,
    place="after common_factor, whose differences widen too; before followed, which makes no tolerance",
    note="0002-tolerance",
)
