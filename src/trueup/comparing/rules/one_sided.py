"""Records that one run alone has: why, and whether that tells how the run was captured or how it ran."""

from __future__ import annotations

import re

import numpy as np

from trueup.comparing.gradient_work import after_backward
from trueup.comparing.judgement import EQUAL, UNDECIDED, UNMATCHED, WITHIN, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.unseen import opaque
from trueup.store.gaps import Gap
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status

STATE = "state"
STEP_COUNTER = "state.step"
"""some optimizers count their steps for each parameter, others once for all"""

_PASSED_ON = {"local": 0, "accumulated": 1, "clipped": 2}
"""what becomes of a gradient, before the update"""

_ESSENTIAL = ("param", "param_grad", "optimizer", "loss")
"""A missing gradient or parameter is never a mere other spelling of the same mathematics."""


def _unmatched(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, match = context.rows, context.rows.match
    only_target, only_reference = (np.flatnonzero(half.record < 0) for half in (rows.reference, rows.target))
    of_target = dict(zip(match.records.only_target.tolist(), match.why_only_target(), strict=True))
    of_reference = dict(zip(match.records.only_reference.tolist(), match.why_only_reference(), strict=True))
    reasons = {row: of_target[int(rows.target.record[row])] for row in only_target.tolist()}
    reasons |= {row: of_reference[int(rows.reference.record[row])] for row in only_reference.tolist()}
    for covered, gap in gaps_of(rows):
        reasons |= dict.fromkeys(np.flatnonzero(covered).tolist(), Reason(gap.code))
    harmless = ~rows.paired & (~_essential(rows) | of_capture(rows))
    harmless[[row for row, why in reasons.items() if why.code is RecordCode.SUMMED_IN_ANOTHER_ORDER]] = True
    unpaired = np.concatenate([only_target, only_reference])
    return judgement.at(unpaired, status=UNMATCHED, why=reasons).at(harmless, bracketable=True)


def _essential(rows: StepRows) -> Bools:
    """Rows whose lack is never harmless."""
    match = rows.match
    call_paired = np.zeros(len(rows), bool)
    for (half, other), partner in zip(
        _sides(rows), (match.calls.reference_of, match.calls.target_of), strict=True
    ):
        unpaired = np.flatnonzero(other.record < 0)
        there = partner[half.call[unpaired]]
        call_paired[unpaired] = (there >= 0) & ~opaque(other)[there]
    of_matched = rows.phase_is("backward") & call_paired & ~_of_unmatched_tensor(rows)
    if match.bridge is not None:
        # of other code, what hands a tensor on may hold a gradient here and none there
        of_matched &= rows.kind_is("module")
    # what a loss was made with is found in the graph, which other code need not show
    counted = (rows.phase_is("loss") & ~rows.slot_is("value")) | rows.slot_is(STEP_COUNTER)
    return np.asarray((rows.phase_is(*_ESSENTIAL) & ~counted) | of_matched)


def _of_unmatched_tensor(rows: StepRows) -> Bools:
    """Gradients of a tensor that one run alone has at this call (attention weights one kernel returns)."""
    out = np.zeros(len(rows), bool)
    forward, backward = rows.phase_is("forward"), rows.phase_is("backward")
    num = len(rows.match.words.slot)
    for half, other in ((rows.target, rows.reference), (rows.reference, rows.target)):
        unpaired = (half.record >= 0) & (other.record < 0)
        at = half.call * num + rows.slot
        out |= unpaired & backward & np.isin(at, at[unpaired & forward])
    return out


def of_capture(rows: StepRows) -> Bools:
    """Rows that one trace alone was to hold."""
    out = _of_other_phases(rows) | _of_updates(rows) | _passed_through(rows)
    for gap_rows, _ in gaps_of(rows):
        out |= gap_rows
    return out


def gaps_of(rows: StepRows) -> list[tuple[Bools, Gap]]:
    """What the other trace's source never holds, and which rows that covers."""
    found = []
    for half, other in _sides(rows):
        unpaired = (half.record >= 0) & (other.record < 0)
        found += [(unpaired & _covered(rows, gap), gap) for gap in other.tables.gaps]
    return found


def _sides(rows: StepRows) -> tuple[tuple[Half, Half], tuple[Half, Half]]:
    return (rows.target, rows.reference), (rows.reference, rows.target)


def _covered(rows: StepRows, gap: Gap) -> Bools:
    out = np.ones(len(rows), bool)
    if gap.phase:
        out &= rows.phase_is(gap.phase)
    if gap.kind:
        out &= rows.kind_is(gap.kind)
    if gap.name is not None:
        out &= np.array([*(word == gap.name for word in rows.match.words.name), False])[rows.of_call("name")]
    if gap.slot:
        fits = re.compile(gap.slot).fullmatch
        out &= np.array([*(fits(word) is not None for word in rows.match.words.slot), False])[rows.slot]
    return out


def _of_other_phases(rows: StepRows) -> Bools:
    """Rows of a phase that the other trace does not hold at all. Of gradients and updates in other code also
    those of a slot, or a kind of call, that it does not hold."""
    out = np.zeros(len(rows), bool)
    other_code = rows.match.bridge is not None
    slots = rows.phase_is("param_grad", "optimizer") & (other_code | _seen_later(rows))
    states = rows.phase_is("optimizer") & rows.slot_starts(STATE) & ~rows.slot_is(STEP_COUNTER)
    state_slots = [
        at
        for at, word in enumerate(rows.match.words.slot)
        if word.startswith(f"{STATE}.") and word != STEP_COUNTER
    ]
    kinds = rows.phase_is("backward", "param_grad", "optimizer") & other_code
    for half, other in _sides(rows):
        unpaired = (half.record >= 0) & (other.record < 0)
        side = other.side
        out |= unpaired & ~np.isin(rows.phase, np.unique(side.record_phase))
        for own, reference, finer in (
            (rows.slot, side.record_slot, slots),
            (half.side.kind[half.call], side.kind[side.record_call], kinds),
        ):
            most = int(max(own.max(initial=0), reference.max(initial=0))) + 1
            there = np.unique(side.record_phase * most + reference)
            out |= unpaired & finer & ~np.isin(rows.phase * most + own, there)
        if np.isin(side.record_slot, state_slots).any():  # the state of another optimizer, and captured
            out &= ~(unpaired & states)
    return out


def _seen_later(rows: StepRows) -> Bools:
    """Gradients whose later forms both traces hold: accumulated after local, clipped, the update.

    Some show no gradient of a single backward, a zero-bubble schedule none that is accumulated. Where
    nothing later is held either, how it was summed and reduced would go unseen.
    """
    stages = np.array([_PASSED_ON.get(word, -1) for word in rows.match.words.slot] + [-1])[rows.slot]
    stages = np.where(rows.phase_is("param_grad"), stages, -1)
    stages[rows.phase_is("optimizer") & rows.slot_is("param")] = len(_PASSED_ON)
    out = np.zeros(len(rows), bool)
    for half, other in _sides(rows):
        unpaired = (half.record >= 0) & (other.record < 0) & rows.phase_is("param_grad") & (stages >= 0)
        if not unpaired.any():
            continue
        names = half.side.plain[half.call]
        latest = np.full(len(rows.match.words.name) + 1, -1)
        both = rows.paired & (stages >= 0)
        np.maximum.at(latest, names[both], stages[both])
        out |= unpaired & (latest[names] > stages)
    return out


def _of_updates(rows: StepRows) -> Bools:
    """Functions called after backward and outside the model where one trace shows updates by what they leave,
    the other by the functions that make them."""
    code = np.array([word == "optimizer" for word in rows.match.words.phase] + [False])
    shown = [bool(code[half.side.record_phase].any()) for half in (rows.target, rows.reference)]
    return after_backward(rows) & ~rows.paired & (shown[0] != shown[1])


def _passed_through(rows: StepRows) -> Bools:
    """Gradients at a call that returns its argument as it is in the other run, such as a cast to the dtype it
    has: there is one tensor, and one gradient."""
    out = np.zeros(len(rows), bool)
    match = rows.match
    gradients = rows.phase_is("backward") & (rows.slot_starts("input") | rows.slot_starts("output"))
    words = [word == "forward" for word in match.words.phase] + [False]
    heads = np.array([word.partition(".")[0] for word in match.words.slot] + [""])
    partners = (match.calls.reference_of, match.calls.target_of)
    for (half, other), partner in zip(_sides(rows), partners, strict=True):
        unpaired = gradients & (half.record >= 0) & (other.record < 0)
        if not unpaired.any():
            continue
        side = other.side
        forward = np.array(words)[side.record_phase] & (side.record_summary >= 0)
        width = int(side.record_summary.max(initial=0)) + 1
        content = side.record_call * width + side.record_summary
        given, returned = (
            content[forward & (heads[side.record_slot] == head)] for head in ("input", "output")
        )
        identities = np.unique(np.intersect1d(given, returned) // width)
        out[unpaired] = np.isin(partner[half.call[unpaired]], identities)
    return out


def bracketed(rows: StepRows, judgement: Judgement) -> Bools:
    """For each row without a verdict: whether the nearest compared rows before and after it agree; the one
    after what enters before all else, the one before what one trace alone was to hold."""
    left, right, is_last = _neighbours(rows, judgement)
    return np.asarray(judgement.bracketable & left & (right | (is_last & of_capture(rows))))


def awaiting(rows: StepRows, judgement: Judgement) -> Bools:
    """Rows after the last compared one of a step, which agrees: the next step tells whether they did, since
    what they left is what it begins with (a program that gathers its weights after the update)."""
    left, _, is_last = _neighbours(rows, judgement)
    return np.asarray(judgement.bracketable & left & is_last & ~of_capture(rows))


def _neighbours(rows: StepRows, judgement: Judgement) -> tuple[Bools, Bools, Bools]:
    """For each row: whether the nearest compared row before it agrees, and that after it, and whether none
    follows."""
    compared = (judgement.status != UNMATCHED) & (judgement.status != UNDECIDED)
    agree = (judgement.status == EQUAL) | (judgement.status == WITHIN)
    index = np.arange(len(rows))
    before = np.maximum.accumulate(np.where(compared, index, -1))
    after = np.minimum.accumulate(np.where(compared, index, len(rows))[::-1])[::-1]
    left = agree[np.maximum(before, 0)] | (before < 0)
    is_last = after == len(rows)
    right = agree[np.minimum(after, len(rows) - 1)] & ~is_last
    return left, right, is_last


RULE = Rule(
    apply=_unmatched,
    codes=(
        RecordCode.ROOT_NOT_DUMPED,
        RecordCode.ONE_GRADIENT_DUMPED,
        RecordCode.KEYWORD_GRADIENTS_NOT_DUMPED,
    ),
    statuses=(Status.UNMATCHED,),
    place="first of the statuses: all other rules judge pairs",
    note="0020-what-a-dump-cannot-hold",
)
