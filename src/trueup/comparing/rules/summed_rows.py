"""Gradients of vectors (biases, norms) that are sums over rows, a little beyond measured noise: what arrived
explains them.

The gradient of a bias is the sum over rows (tokens) of the gradient that arrives at the module's output. An
error e of what arrives, of n rows, leaves at most

    ||sum of e_i|| <= sqrt(n) ||e||

in it, and as much as that where it has one direction in all rows: a constant that is rounded otherwise, as
the share of every class in a smoothed label, errs alike in each. Reruns that are changed by rounding draw
each row's error anew, and measure about ||e||. So what is beyond measured noise, by no more than
``ALIKE_ROWS`` times, and within this bound, with all that arrived within its own, is rounding. The gradient
of a norm's weight is a sum over rows, too, of the same times normalised inputs, whose mean square is 1.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, EQUAL, WITHIN, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.rule import Needs, Rule, StepContext
from trueup.comparing.thresholds import ALIKE_ROWS
from trueup.types.arrays import Bools
from trueup.types.status import Status


def _summed(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, words = context.rows, context.rows.match.words
    over = (judgement.status == DIFFERENT) & rows.phase_is("param_grad") & rows.paired
    over &= np.nan_to_num(judgement.score, nan=np.inf) <= ALIKE_ROWS
    if not over.any():
        return judgement
    arriving = rows.paired & rows.phase_is("backward") & rows.kind_is("module") & rows.slot_starts("output")
    names, errors = rows.of_call("plain"), np.nan_to_num(metrics.difference)
    norms = _accumulated(rows, metrics)
    for row in np.flatnonzero(over).tolist():
        shape = words.shape[rows.reference.shape[row]]
        name, local = int(names[row]), bool(rows.slot_is("local")[row])
        module = words.name[name].rpartition(".")[0]
        if len(shape) != 1 or module not in words.name:
            continue
        sent = arriving & (names == words.name.index(module))
        if local:
            sent &= rows.microbatch == rows.microbatch[row]
        norm = float(metrics.norm[row]) if local else norms.get(name, 0.0)
        if norm and _agree(sent, judgement):
            num = rows.reference.numel[sent] / shape[0]
            allowed = float((np.sqrt(num) * errors[sent]).sum()) / norm
            error = float(metrics.difference[row] / metrics.norm[row])
            if error <= allowed:
                judgement = judgement.at(
                    np.array([row]), status=WITHIN, tolerance=allowed, score=error / allowed
                )
    return judgement


def _accumulated(rows: StepRows, metrics: Metrics) -> dict[int, float]:
    """The norm of each weight's gradient of the whole step: clipping scales it, and its error."""
    names, at = rows.of_call("plain"), rows.phase_is("param_grad") & rows.slot_is("accumulated")
    return {int(names[row]): float(np.nan_to_num(metrics.norm[row])) for row in np.flatnonzero(at).tolist()}


def _agree(sent: Bools, judgement: Judgement) -> bool:
    """Whether something arrives, and all of it is within its own bound."""
    return bool(sent.any() and np.isin(judgement.status[sent], (EQUAL, WITHIN)).all())


RULE = Rule(
    apply=_summed,
    statuses=(Status.WITHIN_NOISE,),
    needs=Needs.NOISE_PROFILE,
    place="after what judges a record by itself: what arrived has its verdict; before what it follows from",
    note="0078-what-modules-mean",
)
