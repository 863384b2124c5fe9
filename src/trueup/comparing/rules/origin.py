"""Where an error starts, and where it arrives.

A record that exceeds its tolerance is an ``origin`` where its inputs (inflow.py) do not explain it:

    e_out > ORIGIN_MARGIN * gain * e_in

with e_in the largest relative difference among its inputs. The gain is measured where a noise
profile is there (noise of the record over noise of its inputs, at least 1: an error that is the
same in every element is not averaged away as rounding is); else it is GAIN of the phase, times how much
larger the record's operands are than the record itself. The root's inputs and sites whose floating inputs are
bit-equal have no gain to be scored by: where they exceed tolerance, they are origins.

What is explained is ``propagated``; ``amplified`` where the gain itself is extreme, or where nothing that
came in exceeded its tolerance, so that noise grew.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.comparing.judgement import (
    AMPLIFIED,
    DIFFERENT,
    ORIGIN,
    PROPAGATED,
    UNDECIDED,
    WITHIN,
    Attribution,
    Judgement,
)
from trueup.comparing.metrics import Metrics
from trueup.comparing.noise_bound import floor_of_rows
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.thresholds import EXTREME, GAIN, LOTTERY, ORIGIN_MARGIN
from trueup.matching.codes import Codes
from trueup.types.arrays import Bools, Floats
from trueup.types.status import Status


def _attributed(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, noise, inflow = context.rows, context.noise, context.inflow
    error = _errors(rows, metrics, judgement)
    noisy = np.zeros(len(rows), bool) if noise is None else noise.size > LOTTERY
    lottery = (judgement.status == WITHIN) & ((error > LOTTERY) | noisy)
    error_in = inflow.largest(np.where(lottery, 0.0, error))
    gain = _gain(context, metrics, lottery)
    with np.errstate(invalid="ignore"):  # 0 times an infinite error explains nothing
        explained = ORIGIN_MARGIN * gain * error_in
    status = judgement.status.copy()
    beyond = judgement.status == DIFFERENT
    status[beyond] = _of_beyond(context, judgement, error, error_in, gain, explained)[beyond]
    known = rows.paired & (judgement.status != UNDECIDED)
    attribution = Attribution(
        status=status,
        error=error,
        explained=explained,
        gain=np.where(known & (error_in > 0) & np.isfinite(error_in), gain, np.nan),
        error_in=np.where(known, error_in, np.nan),
        inputs_equal=np.where(known, _inputs_equal(context, metrics), -1),
        floor=np.where(known, floor_of_rows(rows, noise), np.nan),
    )
    return replace(judgement, attribution=attribution)


def _inputs_equal(context: StepContext, metrics: Metrics) -> Codes:
    rows, inflow = context.rows, context.inflow
    apart = rows.paired & ~(metrics.known_bits & metrics.bits_equal)
    some = inflow.largest(np.where(rows.paired, 1.0, 0.0)) > 0
    return np.where(some, (inflow.largest(apart.astype(float)) == 0).astype(np.int64), -1)


def _of_beyond(
    context: StepContext,
    judgement: Judgement,
    error: Floats,
    error_in: Floats,
    gain: Floats,
    explained_error: Floats,
) -> Codes:
    rows, inflow = context.rows, context.inflow
    explained = error <= explained_error
    passed_on = inflow.first < np.arange(len(rows))
    explained |= passed_on & (error_in > 0)
    follows = np.isinf(error) & np.isnan(floor_of_rows(rows, None)) & (error_in > 0)
    explained |= follows
    entered_beyond = inflow.largest((judgement.status == DIFFERENT).astype(float)) > 0
    entered_beyond |= np.isinf(error_in)
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = np.where(error_in > 0, error / error_in, np.inf)
    extreme = (gain > EXTREME) & (growth > EXTREME) & ~follows
    status = np.where(explained, PROPAGATED, ORIGIN)
    return np.where(explained & (extreme | ~entered_beyond), AMPLIFIED, status)


def _errors(rows: StepRows, metrics: Metrics, judgement: Judgement) -> Floats:
    """Relative difference of every row; infinite where the two are of another kind or shape, 0 where one side
    has nothing."""
    error = np.where(np.isnan(metrics.difference), 0.0, metrics.rel_l2)
    error = np.where(np.isinf(judgement.score), np.inf, error)
    shaped = rows.paired & (rows.target.summary >= 0) & (rows.reference.summary >= 0)
    shaped &= rows.layout < 0  # else the two were brought to one shape
    error = np.where(shaped & (rows.target.shape != rows.reference.shape), np.inf, error)
    whole = np.isnan(floor_of_rows(rows, None)) & (error > 0)
    return np.where(rows.paired, np.where(whole, np.inf, error), 0.0)


def _gain(context: StepContext, metrics: Metrics, lottery: Bools) -> Floats:
    rows, noise = context.rows, context.noise
    phases = rows.match.words.phase
    bound = np.array([GAIN.get(word, 1.0) for word in phases] + [1.0])[rows.phase]
    with np.errstate(divide="ignore", invalid="ignore"):
        cancels = np.nan_to_num(context.rounding.scale / metrics.norm, nan=1.0, posinf=1.0)
    bound = bound * np.maximum(cancels, 1.0)
    if noise is None:
        return bound
    size = np.where(lottery, 0.0, noise.size)
    entered = context.inflow.largest(size)
    with np.errstate(divide="ignore", invalid="ignore"):
        measured = np.where(entered > 0, noise.size / entered, np.nan)
    measured = np.fmax(measured, noise.gain)
    return np.where(np.isnan(measured), bound, np.maximum(measured, 1.0))


RULE = Rule(
    apply=_attributed,
    statuses=(Status.ORIGIN, Status.PROPAGATED, Status.AMPLIFIED),
    place="after everything that decides whether a record differs; before all that take an origin back",
    note="0007-noise-and-origin",
)
