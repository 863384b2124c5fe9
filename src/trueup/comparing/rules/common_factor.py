"""Differences smaller than noise that are the same everywhere: a common factor that rounding does not make.

Rounding changes elements independently; a wrong constant changes them together. With t = a r + rest, the
factor's distance from 1 is judged apart from the size of the difference:

    |a - 1| > max(FACTOR_ROUNDED, FACTOR_TIMES max(FACTOR_SITE * bias, spread * e))

- bias: the largest |a - 1| reruns of the reference showed here.
- spread: root mean square of |a - 1| / e over such records of the reruns in this phase; from sketches of 64
  numbers never less than 1/8, for any tensor.

Only for matrices and activations of FACTOR_SMALLEST elements and more, and only with a measured profile: what
comes from an earlier layer is coherent itself, and only measuring tells how much.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.comparing.judgement import DIFFERENT, WITHIN, CommonFactor, Judgement
from trueup.comparing.metrics import SKETCH, VALUES, Metrics
from trueup.comparing.noise import StepNoise
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.rule import Needs, Rule, StepContext
from trueup.comparing.thresholds import (
    FACTOR_OF_SKETCH,
    FACTOR_ROUNDED,
    FACTOR_SITE,
    FACTOR_SMALLEST,
    FACTOR_TIMES,
)
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import RecordCode
from trueup.types.reason import reason
from trueup.types.status import Status

PHASES = ("forward", "backward", "param_grad", "optimizer")


def _judged(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    if context.noise is None:
        return judgement
    rows, noise = context.rows, context.noise
    scale, error = metrics.details["scale"], metrics.rel_l2
    known = rows.paired & np.isin(metrics.evidence, (SKETCH, VALUES)) & ~np.isnan(scale) & (error > 0)
    known &= np.isfinite(error) & (np.nan_to_num(rows.reference.numel) >= FACTOR_SMALLEST)
    dims = np.array([len(shape) for shape in rows.match.words.shape] + [0])[rows.reference.shape]
    known &= (dims >= 2) & rows.phase_is(*PHASES, "param") & ~np.isnan(noise.bias)
    bias = np.where(known, np.abs(scale - 1.0), 0.0)
    spread = _spread(rows, metrics, noise, known) * np.where(known, error, 0.0)
    bound = np.fmax(FACTOR_ROUNDED, context.factor * FACTOR_TIMES * np.fmax(FACTOR_SITE * noise.bias, spread))
    flagged = known & (bias > bound) & (judgement.status == WITHIN) & ~rows.phase_is("param")
    flagged &= ~rows.phase_is("optimizer") | rows.slot_is("param")
    reasons = {
        row: reason(RecordCode.COMMON_FACTOR, factor=float(scale[row] - 1.0), noise=float(noise.bias[row]))
        for row in np.flatnonzero(flagged).tolist()
    }
    judged = judgement.at(flagged, status=DIFFERENT, score=bias[flagged] / bound[flagged], why=reasons)
    return replace(judged, factor=CommonFactor(bias=bias, bound=bound, flagged=flagged))


def _spread(rows: StepRows, metrics: Metrics, noise: StepNoise, known: Bools) -> Floats:
    """Per row, the root mean square of bias over error among the reruns' records of its phase."""
    spread = np.full(len(rows), FACTOR_OF_SKETCH)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = noise.bias / noise.size
    for phase in PHASES:
        here = rows.phase_is(phase) & known & np.isfinite(share)
        if here.any():
            spread[rows.phase_is(phase)] = np.sqrt(np.mean(share[here] ** 2))
    return np.where(metrics.evidence == SKETCH, np.maximum(spread, FACTOR_OF_SKETCH), spread)


RULE = Rule(
    apply=_judged,
    codes=(RecordCode.COMMON_FACTOR,),
    statuses=(Status.DIFFERENT,),
    needs=Needs.NOISE_PROFILE,
    place="after the statuses: it takes up what they left within; before those that follow from a difference",
    note="0007-noise-and-origin",
)
