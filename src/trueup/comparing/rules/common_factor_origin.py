"""Where a common factor below the noise in size starts: larger than the factors of what came in explain.

Not at gradients that a norm has clipped of which other gradients are wrong.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, ORIGIN, PROPAGATED, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.clipped import share_a_factor
from trueup.comparing.rules.rule import Needs, Rule, StepContext
from trueup.comparing.thresholds import FACTOR_TELLING, ORIGIN_MARGIN
from trueup.types.arrays import Bools
from trueup.types.status import Status


def _attributed(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, factor = context.rows, judgement.factor
    at, beyond = factor.flagged, judgement.status == DIFFERENT
    telling = factor.bias * (factor.bias > FACTOR_TELLING * factor.bound)
    entered = context.inflow.largest(np.where(beyond & ~at, np.inf, telling))
    differs = _of_calls_with(rows, beyond & rows.phase_is("param_grad", "param"))
    follows = rows.phase_is("optimizer") & differs
    follows |= share_a_factor(rows, metrics, judgement)
    apart = (factor.bias > ORIGIN_MARGIN * entered) & ~follows
    return judgement.attributed(at, np.where(apart, ORIGIN, PROPAGATED)[at])


def _of_calls_with(rows: StepRows, chosen: Bools) -> Bools:
    """Rows whose call has one of the chosen rows."""
    of_call = np.zeros(rows.match.target.num_calls + 1, bool)
    of_call[rows.target.call[chosen]] = True
    of_call[-1] = False
    return np.asarray(of_call[rows.target.call])


RULE = Rule(
    apply=_attributed,
    statuses=(Status.ORIGIN, Status.PROPAGATED),
    needs=Needs.NOISE_PROFILE,
    place="after origin, which judges its rows by size alone, and every rule that reads such origins",
    note="0007-noise-and-origin",
)
