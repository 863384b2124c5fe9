"""Losses whose logits, and all that was made before them, are bit-identical.

A coarse dtype that came before them excuses nothing: the difference was made after the logits, where
``comparing.losses.mean`` knows what rounding makes.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, WITHIN, Judgement
from trueup.comparing.losses.mean import MicrobatchLosses
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.thresholds import FLOAT32
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.arrays import Bools, Ints
from trueup.types.codes import RecordCode
from trueup.types.reason import reason
from trueup.types.status import Status


def _mean(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    floating = context.floating(metrics)
    outputs = floating & rows.phase_is("forward") & rows.slot_starts("output")
    single = (outputs | rows.phase_is("loss")) & floating & (rows.reference.numel == 1)
    apart = np.flatnonzero(single & (judgement.status == WITHIN) & (metrics.difference > 0))
    if not len(apart):
        return judgement
    first = int(apart[0])
    alike = single & (rows.phase == rows.phase[first]) & (rows.slot == rows.slot[first])
    alike &= rows.of_call("name") == rows.of_call("name")[first]
    made = outputs & (rows.reference.numel > 1)
    before = floating & rows.phase_is("param", "forward", "loss")
    before &= ~(single & (np.arange(len(rows)) >= first))  # losses, and what is made of them
    at = _from_equals(np.flatnonzero(alike), before, made, metrics)
    if not len(at) or at[0] > first or (rows.target.dtype[at] != rows.reference.dtype[at]).any():
        return judgement
    losses = _losses(context, at, before, np.flatnonzero(made))
    if not losses.size > 0:
        return judgement
    with np.errstate(divide="ignore", invalid="ignore"):  # losses of 0 on both sides: NaN is beyond nothing
        error = metrics.difference[at] / metrics.norm[at]
    beyond = error > losses.tolerance
    if losses.coarsest <= FLOAT32 or not losses.error > losses.tolerance:
        return judgement
    dtype = _name(rows.match.words.dtype, losses.coarsest)
    why = reason(RecordCode.MEAN_OF_TOKENS, tokens=float(losses.tokens.sum()), dtype=dtype)
    return judgement.at(
        at[beyond],
        status=DIFFERENT,
        tolerance=losses.tolerance,
        score=error[beyond] / losses.tolerance,
        why=why,
    )


def _from_equals(losses: Ints, before: Bools, made: Bools, metrics: Metrics) -> Ints:
    """Those of the losses before which everything is bit-identical, and something was made."""
    known = np.concatenate([[False], np.cumsum(before & ~metrics.bits_equal) > 0])
    seen = np.concatenate([[0], np.cumsum(made)])
    return losses[~known[losses] & (seen[losses] > 0)]


def _losses(context: StepContext, at: Ints, before: Bools, made: Ints) -> MicrobatchLosses:
    rows, words = context.rows, context.rows.match.words
    lasts = np.array([shape[-1] if shape else 1 for shape in words.shape] + [1], float)
    logits = made[np.searchsorted(made, at) - 1]
    statistics = rows.reference.statistics
    largest = np.fmax(np.abs(statistics["minimum"]), np.abs(statistics["maximum"]))[logits]
    roundoffs = unit_roundoffs(words.dtype)[rows.reference.dtype]
    with np.errstate(invalid="ignore"):  # tensors without elements, which are nobody's logits
        tokens = (rows.reference.numel / lasts[rows.reference.shape])[logits]
    return MicrobatchLosses(
        target=rows.target.statistics["mean"][at],
        reference=statistics["mean"][at],
        tokens=tokens,
        largest=np.nan_to_num(largest),
        coarsest=float(np.nanmax(roundoffs[before & (np.arange(len(rows)) < at[0])])),
        own=float(roundoffs[at[0]]),
    )


def _name(dtypes: list[str], roundoff: float) -> str:
    return next(name for name in dtypes if unit_roundoffs([name])[0] == roundoff)


RULE = Rule(
    apply=_mean,
    codes=(RecordCode.MEAN_OF_TOKENS,),
    statuses=(Status.DIFFERENT,),
    place="after within_bound, whose bound knows of the coarse dtype alone; before what it follows from",
    note="0002-tolerance",
)
