"""The first thing that two runs do not make alike, where they hold it in two floating dtypes.

While all before is the same, number by number, what two dtypes hold differently is what the coarser one
rounds: a residual stream in bfloat16, a loss in it, weights cast to it. A program that rounds to bfloat16
elsewhere hides that in its tolerance, but it is no noise: it is in every step, and on one side alone. It is a
difference of the runs where

- the two differ by more than the finer dtype rounds, and by no more than the coarser one does, and
- something of one dtype on both sides that comes after it differs by more than the finer dtype rounds. Where
  a result was only handed on in another dtype and is cast by whoever reads it, nothing does. Of weights what
  their gradients and updates are is enough: they are trained in that dtype.

A loss that both runs hold in one dtype is judged by the logits that it is made of, where these are the same
numbers in two dtypes. Two versions of a framework, and two kinds of device, have lists of their own of what
autocast computes in which dtype, and two implementations cast at other places: of those nothing is said. A
cast that one run alone makes is no first difference: what is made of it is.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from trueup.comparing.coarse_choices import values_of
from trueup.comparing.first import JudgedStep
from trueup.comparing.metrics import SKETCH
from trueup.comparing.precision_gap import GapOf, PrecisionGap, casts_of, computing, gap_from, names_of
from trueup.comparing.rows import StepRows
from trueup.comparing.thresholds import COARSER, FINER, FLOAT32, LOSS_ROUNDINGS
from trueup.numerics.dtypes import DTYPES, unit_roundoffs
from trueup.numerics.whole_numbers import lost_whole_numbers
from trueup.store import TraceSource
from trueup.types.arrays import Bools
from trueup.types.codes import EvidenceCode
from trueup.types.reason import Reason, reason
from trueup.types.trace import Manifest


def gap_of_results(judged: JudgedStep, sides: tuple[Manifest, Manifest]) -> PrecisionGap | None:
    """Where the first difference of a step is one of dtypes, and has an effect; None where it is not."""
    rows, metrics = judged.rows, judged.metrics
    if rows.match.bridge is not None or _platform(sides[0]) != _platform(sides[1]):
        return None
    first = _first(judged)
    if first < 0 or not rows.paired[first] or metrics.evidence[first] > SKETCH:
        return None
    roundoff = unit_roundoffs(rows.match.words.dtype)
    two = roundoff[rows.target.dtype], roundoff[rows.reference.dtype]
    in_two = rows.paired & ~np.isnan(two[0]) & ~np.isnan(two[1]) & (rows.target.dtype != rows.reference.dtype)
    shown = _shown(rows, in_two, first)
    if shown < 0:
        return None
    finer, coarser = (float(of(two[0][shown], two[1][shown])) for of in (min, max))
    least = _least(rows, finer, first)
    alike = rows.paired & (rows.target.dtype == rows.reference.dtype) & ~np.isnan(two[0])
    if rows.phase_is("param")[first]:
        alike |= in_two & rows.phase_is("param_grad", "optimizer")
    felt = alike & ~metrics.bits_equal & (metrics.rel_l2 > least) & (np.arange(len(rows)) >= first)
    of_weights = in_two & rows.phase_is("param") & rows.slot_is("value")
    apart = metrics.rel_l2[of_weights if of_weights[first] else [first]]  # a draw in it may be another number
    if not is_rounding(float(np.median(apart)), least, coarser) or not felt.any():
        return None
    felt_at = str(judged.table["site"][int(np.argmax(felt))])
    size = reason(EvidenceCode.FINER_EXCEEDED, rel_l2=float(metrics.rel_l2[first]), least=least, site=felt_at)
    gap = _gap(judged, shown, in_two, (size,), of_loss=bool(rows.phase_is("loss")[first]))
    beyond = 0.0 if gap.beyond is None else gap.beyond.row.rel_l2 or math.inf
    is_made_of_them = gap.of is GapOf.WEIGHTS and beyond <= COARSER * coarser
    return replace(gap, beyond=None) if gap.beyond is None or is_made_of_them else None


def gap_of_whole_numbers(judged: JudgedStep, sides: tuple[TraceSource, TraceSource]) -> PrecisionGap | None:
    """Where the first difference of a step is whole numbers that a coarse dtype does not hold: positions and
    timesteps from 257 on in bfloat16 are even. They place or index: what is made of another one is no
    rounding, and no tolerance of the dtype holds for it."""
    rows, first = judged.rows, _first(judged)
    if first < 0 or not rows.paired[first] or not rows.phase_is("forward")[first]:
        return None
    halves = (rows.target, rows.reference)
    dtypes = [rows.match.words.dtype[half.dtype[first]] for half in halves]
    if dtypes[0] == dtypes[1] or any(name not in DTYPES or DTYPES[name].kind != "float" for name in dtypes):
        return None
    values = [values_of(h, first, side, *at) for h, side, at in zip(halves, sides, judged.at, strict=True)]
    coarse = int(DTYPES[dtypes[1]].eps > DTYPES[dtypes[0]].eps)
    rounded, whole = values[coarse], values[1 - coarse]
    if rounded is None or whole is None:
        return None
    facts = lost_whole_numbers(rounded, whole, dtypes[coarse])
    if facts is None:
        return None
    lost = reason(EvidenceCode.WHOLE_ROUNDED, dtype=dtypes[coarse], **facts)
    return replace(gap_from(judged, first, *dtypes, of=GapOf.RESULT, grounds=(lost,)), beyond=None)


def _first(judged: JudgedStep) -> int:
    """The first row with other numbers, or of one run alone; -1 where there is none."""
    rows, metrics = judged.rows, judged.metrics
    lone_casts = rows.kind_is("api") & rows.phase_is("forward") & casts_of(rows)
    apart = np.where(rows.paired, ~metrics.bits_equal & ~(metrics.difference == 0), ~lone_casts)
    return int(np.argmax(apart)) if apart.any() else -1


def is_rounding(error: float, least: float, coarser: float) -> bool:
    """Whether a relative difference is more than the finer dtype makes and no more than one of this unit
    roundoff does."""
    return least < error <= COARSER * coarser


def _platform(manifest: Manifest) -> tuple[object, ...]:
    devices = {str(one).split()[0] for one in manifest.get("devices") or ()}
    return manifest.get("framework"), manifest.get("framework_version"), frozenset(devices)


def _shown(rows: StepRows, in_two: Bools, first: int) -> int:
    """The row whose two dtypes make the first difference: itself, or the logits of a loss; -1 where none."""
    is_loss = bool((rows.phase_is("loss") & rows.slot_is("value"))[first])
    is_made = bool(rows.phase_is("param", "forward")[first]) and not _is_batch(rows, first)
    if in_two[first]:
        return first if is_loss or is_made else -1
    returned = _returned(rows, first) if is_loss else -1
    return returned if returned >= 0 and in_two[returned] else -1


def _is_batch(rows: StepRows, row: int) -> bool:
    """Whether the program gives it to the model: that is data."""
    is_root = rows.kind_is("module") & (rows.of_call("parent") < 0)
    return bool((is_root & rows.slot_starts("input"))[row])


def _returned(rows: StepRows, loss: int) -> int:
    """The largest tensor that the model returned before a loss; -1 where it returned none."""
    roots = rows.phase_is("forward") & rows.slot_starts("output") & rows.kind_is("module")
    roots &= (rows.of_call("parent") < 0) & (np.arange(len(rows)) < loss)
    roots &= rows.microbatch == rows.microbatch[loss]
    at = np.flatnonzero(roots & (np.nan_to_num(rows.reference.numel) > 1))
    return int(at[np.argmax(rows.reference.numel[at])]) if len(at) else -1


def _least(rows: StepRows, finer: float, first: int) -> float:
    """What the finer dtype may round at most, relative; of a loss, a sum over tokens in another order. A
    finer dtype that is coarse itself rounds once: both are rounded to, and nobody casts them to one."""
    if not rows.phase_is("loss")[first]:
        return finer if finer > FLOAT32 else FINER * finer
    logits = _returned(rows, first)
    shape = rows.match.words.shape[rows.reference.shape[logits]] if logits >= 0 else ()
    tokens = math.prod(shape[:-1]) if shape else 1
    return max(finer, FLOAT32) * (LOSS_ROUNDINGS + math.sqrt(tokens))


def _gap(
    judged: JudgedStep, shown: int, in_two: Bools, grounds: tuple[Reason, ...], *, of_loss: bool
) -> PrecisionGap:
    rows, words = judged.rows, judged.rows.match.words
    dtypes = [words.dtype[half.dtype[shown]] for half in (rows.target, rows.reference)]
    alike = in_two & (rows.target.dtype == rows.target.dtype[shown])
    alike &= rows.reference.dtype == rows.reference.dtype[shown]
    weights = names_of(rows, alike & rows.phase_is("param") & rows.slot_is("value"))
    of = GapOf.RESULT
    if rows.phase_is("param")[shown]:
        of = GapOf.WEIGHTS
    elif of_loss:
        of = GapOf.LOSS
    made = alike & rows.phase_is("forward") & rows.slot_starts("output") & rows.kind_is("module")
    made &= rows.of_call("type") == rows.of_call("type")[shown]
    modules: tuple[str, ...] = ()
    if of is GapOf.RESULT and made.any():
        modules = (f"{words.type[rows.of_call('type')[shown]]} ({len(names_of(rows, made))})",)
    elif of is GapOf.RESULT and rows.kind_is("api")[shown]:
        calls = alike & rows.phase_is("forward") & rows.slot_starts("output") & rows.kind_is("api")
        _, modules = computing(rows, calls & (rows.of_call("name") == rows.of_call("name")[shown]))
    return gap_from(judged, shown, *dtypes, of=of, parameters=weights, modules=modules, grounds=grounds)
