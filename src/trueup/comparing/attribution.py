"""Where an error was made, and where it merely arrived: a final status for every compared record.

A record beyond its tolerance is an ``origin`` where what it was made from (inflow.py) does not explain it:

    e_out > MARGIN * gain * e_in

with e_in the largest relative difference among what it was made from. The gain is measured where a noise
profile is there (noise of the record over noise of what it was made from, at least 1: an error that is the
same in every element is not averaged away as rounding is); else it is GAIN of the phase, times how much
larger the record's operands are than the record itself. The root's inputs and sites whose floating inputs are
bit-equal have no gain to be scored by: beyond tolerance, they are origins.

What is explained is ``propagated``, as is a clipped gradient that differs by a factor which most share while
others are wrong (clipped.py); ``amplified`` where the gain itself is extreme, or where nothing that
came in was beyond tolerance, so that noise grew. What follows from an update that was itself beyond
tolerance is ``propagated`` although its tolerance, widened for it, holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueup.comparing.absent import first_absent_gradient
from trueup.comparing.alone import lone_row
from trueup.comparing.clipped import share_a_factor
from trueup.comparing.coherence import Coherence
from trueup.comparing.inflow import Inflow
from trueup.comparing.judgement import (
    AMPLIFIED,
    DIFFERENT,
    ORIGIN,
    PROPAGATED,
    UNDECIDED,
    WITHIN,
    Judgement,
)
from trueup.comparing.metrics import Metrics
from trueup.comparing.noise import StepNoise
from trueup.comparing.noise_bound import LOTTERY, floor_of_rows
from trueup.comparing.rows import Bools, Floats, Rows
from trueup.comparing.tolerance import Bound
from trueup.matching.codes import Codes
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.codes import RecordCode
from trueup.types.reason import reason

__all__ = ["Attribution", "attribute"]

MARGIN = 3.0
GAIN = {"forward": 2.0, "loss": 2.0, "backward": 3.0, "param_grad": 4.0, "collective": 1.0}
FINER = 8.0
"""roundings of the finer dtype that a record of a coarser one must exceed to be called an origin"""
MOST_APART = 0.2
EXTREME = 10.0
"""a gain, and a growth, from which on an explained error is called amplified"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Columns beside Rows; NaN where a number has no meaning."""

    status: Codes
    """codes of ``types.status.Status``"""
    gain: Floats
    error_in: Floats
    """largest relative difference among what the record was made from"""
    floor: Floats
    """relative difference below which nothing is said: measured noise, or one rounding"""


def attribute(
    rows: Rows,
    metrics: Metrics,
    verdict: Judgement,
    rounding: Bound,
    noise: StepNoise | None,
    inflow: Inflow,
    *,
    followed: Bools,
    coherence: Coherence | None = None,
) -> Attribution:
    """Statuses of one step on one rank.

    ``followed``: rows whose tolerance was widened by an update beyond its own, or whose NaN were handed on.
    """
    error = _errors(rows, metrics, verdict)
    lottery = (verdict.status == WITHIN) & ((error > LOTTERY) | _noisier(noise, len(rows)))
    error_in = inflow.largest(np.where(lottery, 0.0, error))
    gain = _gain(rows, metrics, rounding, noise, inflow, lottery)
    status = verdict.status.copy()
    beyond = verdict.status == DIFFERENT
    status[beyond] = _of_beyond(rows, error, error_in, gain, verdict, inflow)[beyond]
    coarser = _coarser(rows, error, error_in, gain, verdict, status)
    status[coarser] = ORIGIN
    status[(status == ORIGIN) & share_a_factor(rows, metrics, verdict)] = PROPAGATED
    alone = lone_row(rows, metrics, verdict, error)
    absent = first_absent_gradient(rows, verdict)
    status[[row for row in (alone, absent) if row is not None]] = ORIGIN
    if coherence is not None:
        at = coherence.flagged
        entered = inflow.largest(np.where(beyond & ~at, np.inf, coherence.bias * _telling(coherence)))
        follows = rows.phase_is("optimizer") & _has_beyond(
            rows, beyond & rows.phase_is("param_grad", "param")
        )
        apart = (coherence.bias > MARGIN * entered) & ~follows
        status[at] = np.where(apart, ORIGIN, PROPAGATED)[at]
    status[followed & ((verdict.status == WITHIN) | (status == ORIGIN))] = PROPAGATED
    known = rows.paired & (verdict.status != UNDECIDED)
    return Attribution(
        status=status,
        gain=np.where(known & (error_in > 0) & np.isfinite(error_in), gain, np.nan),
        error_in=np.where(known, error_in, np.nan),
        floor=np.where(known, floor_of_rows(rows, noise), np.nan),
    )


def _coarser(
    rows: Rows, error: Floats, error_in: Floats, gain: Floats, verdict: Judgement, status: Codes
) -> Bools:
    """Records of another dtype on one side, good for that dtype, from which errors beyond tolerance follow.

    Held against the finer dtype they are origins; where most of a run is in another dtype, or nothing beyond
    tolerance follows, they stay what they are. Tolerance and score become what the finer dtype gives.
    """
    none = np.zeros(len(rows), bool)
    grown = np.flatnonzero(status == AMPLIFIED)
    if not len(grown):
        return none
    table = unit_roundoffs(rows.match.words.dtype)
    finer = np.fmin(table[rows.target.dtype], table[rows.reference.dtype])
    apart = rows.paired & (rows.target.dtype != rows.reference.dtype) & ~np.isnan(finer)
    if apart.sum() > MOST_APART * max(int((rows.paired & ~np.isnan(finer)).sum()), 1):
        return none
    found = apart & (verdict.status == WITHIN) & (error > FINER * finer) & (error > MARGIN * gain * error_in)
    found &= np.arange(len(rows)) < grown[-1]
    verdict.tolerance[found] = (FINER * finer)[found]
    verdict.score[found] = (error / (FINER * finer))[found]
    words = rows.match.words.dtype
    for row in np.flatnonzero(found).tolist():
        target, reference = (words[half.dtype[row]] for half in (rows.target, rows.reference))
        verdict.reasons[row] = reason(
            RecordCode.DTYPE_DIFFERS_WITH_EFFECT, target=target, reference=reference
        )
    return np.asarray(found)


def _has_beyond(rows: Rows, chosen: Bools) -> Bools:
    """Rows whose call has one of the chosen rows."""
    of_call = np.zeros(rows.match.target.num_calls + 1, bool)
    of_call[rows.target.call[chosen]] = True
    of_call[-1] = False
    return np.asarray(of_call[rows.target.call])


def _telling(coherence: Coherence) -> Bools:
    """Common factors that are at least near their bound; the rest is chance."""
    return np.asarray(coherence.bias > 0.4 * coherence.bound)


def _errors(rows: Rows, metrics: Metrics, verdict: Judgement) -> Floats:
    """Relative difference of every row; infinite where the two are of another kind or shape, 0 where one side
    has nothing."""
    error = np.where(np.isnan(metrics.difference), 0.0, metrics.rel_l2)
    error = np.where(np.isinf(verdict.score), np.inf, error)
    shaped = rows.paired & (rows.target.summary >= 0) & (rows.reference.summary >= 0)
    shaped &= rows.layout < 0  # else the two were brought to one shape
    error = np.where(shaped & (rows.target.shape != rows.reference.shape), np.inf, error)
    whole = np.isnan(floor_of_rows(rows, None)) & (error > 0)
    return np.where(rows.paired, np.where(whole, np.inf, error), 0.0)


def _noisier(noise: StepNoise | None, num: int) -> Bools:
    return np.zeros(num, bool) if noise is None else np.asarray(noise.size > LOTTERY)


def _gain(
    rows: Rows, metrics: Metrics, rounding: Bound, noise: StepNoise | None, inflow: Inflow, lottery: Bools
) -> Floats:
    phases = rows.match.words.phase
    bound = np.array([GAIN.get(word, 1.0) for word in phases] + [1.0])[rows.phase]
    with np.errstate(divide="ignore", invalid="ignore"):
        cancels = np.nan_to_num(rounding.scale / metrics.norm, nan=1.0, posinf=1.0)
    bound = bound * np.maximum(cancels, 1.0)
    if noise is None:
        return bound
    size = np.where(lottery, 0.0, noise.size)
    entered = inflow.largest(size)
    with np.errstate(divide="ignore", invalid="ignore"):
        measured = np.where(entered > 0, noise.size / entered, np.nan)
    measured = np.fmax(measured, noise.gain)
    return np.where(np.isnan(measured), bound, np.maximum(measured, 1.0))


def _of_beyond(
    rows: Rows, error: Floats, error_in: Floats, gain: Floats, verdict: Judgement, inflow: Inflow
) -> Codes:
    with np.errstate(invalid="ignore"):  # 0 times an infinite error explains nothing
        explained = error <= MARGIN * gain * error_in
    handed_on = inflow.first < np.arange(len(rows))
    explained |= handed_on & (error_in > 0)
    follows = np.isinf(error) & np.isnan(floor_of_rows(rows, None)) & (error_in > 0)
    explained |= follows
    entered_beyond = inflow.largest((verdict.status == DIFFERENT).astype(float)) > 0
    entered_beyond |= np.isinf(error_in)
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = np.where(error_in > 0, error / error_in, np.inf)
    extreme = (gain > EXTREME) & (growth > EXTREME) & ~follows
    status = np.where(explained, PROPAGATED, ORIGIN)
    return np.where(explained & (extreme | ~entered_beyond), AMPLIFIED, status)
