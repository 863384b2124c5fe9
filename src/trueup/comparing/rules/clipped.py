"""Gradients that were clipped by another norm, because others were wrong.

Clipping divides all gradients by the norm of all: one that is wrong changes every other one by a common
factor. What differs by no more than that factor was not made wrong itself.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, ORIGIN, PROPAGATED, WITHIN, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.thresholds import CLIPPED_FEWEST, FACTOR_ROUNDED, REST_OF_DIFFERENCE
from trueup.types.arrays import Bools
from trueup.types.status import Status


def _clipped(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    shared = share_a_factor(context.rows, metrics, judgement)
    return judgement.attributed((judgement.attribution.status == ORIGIN) & shared, PROPAGATED)


def share_a_factor(rows: StepRows, metrics: Metrics, judgement: Judgement) -> Bools:
    """Clipped gradients that differ and share one factor of difference, where some gradient differs
    otherwise; nothing where all differ alike: then it is the clipping.

    Those that stay within tolerance have the factor too, where it is all that is left of their difference.
    """
    shared = np.zeros(len(rows), bool)
    of_gradients = rows.phase_is("param_grad")
    beyond = of_gradients & (judgement.status == DIFFERENT)
    clipped = of_gradients & rows.slot_is("clipped")
    if not (beyond & clipped).any() or "scale" not in metrics.details:
        return shared
    scale, residual = metrics.details["scale"], metrics.details["residual"]
    allowed = np.where(np.isfinite(judgement.tolerance), judgement.tolerance, 0.0)
    with np.errstate(invalid="ignore"):
        explained = residual <= REST_OF_DIFFERENCE * metrics.rel_l2
        fits = beyond & (residual <= 2 * allowed)
    fits |= (judgement.status == WITHIN) & explained
    at = np.flatnonzero(clipped & fits & np.isfinite(scale))
    if len(at) < CLIPPED_FEWEST:
        return shared
    left = float(np.median(np.where(explained[at], residual[at], allowed[at])))
    scales, width = scale[at], 2 * max(left, FACTOR_ROUNDED)
    ordered = np.sort(scales)
    near = np.searchsorted(ordered, ordered + width, "right") - np.searchsorted(ordered, ordered - width)
    common = ordered[np.argmax(near)]
    shared[at] = np.abs(scales - common) <= width
    of_call = np.zeros(rows.match.target.num_calls + 1, bool)
    of_call[rows.target.call[shared]] = True
    others = beyond & ~of_call[rows.target.call]
    if shared.sum() < CLIPPED_FEWEST or not others.any():
        shared[:] = False
    return np.asarray(shared & beyond)


RULE = Rule(
    apply=_clipped,
    statuses=(Status.PROPAGATED,),
    place="after finer_dtype, whose origins clipping may have made too; before the rules that name one row",
    note="0017-received-is-not-made",
)
