"""What differs and comes out nowhere: the same computation in another form.

A tensor inside the model, or between it and the loss, acts on the training through the loss and the gradients
of weights alone. A program may scale before a product or after it, run a recurrent layer over packed rows or
over padded ones, fill masked scores with another number: what stands between differs by as much as there is
of it, and the loss and every gradient agree to rounding. A difference of relative size d that the training
felt would reach them by its share in them. Where it is ``UNFELT`` times what the gradients of weights may
differ by, and every one of them agrees, that share is below 1 / ``UNFELT`` in each: less than any use of the
tensor leaves, since what goes into a product with a weight is a factor of that weight's gradient. Smaller
differences are left as they are: rounding could hide what comes of them.
What cannot be compared at all, since one run gives an expert
all tokens and the other its own, is settled in the same way where a difference of its whole size would have
been felt. So are ids that hold the other run's and further columns. Positions, and what weighs the loss, are
settled so too. What else the program gives the model is data, not inside of it. What ranks exchange for the
loss of each token is inside, too, and what they exchange while a module computes or backward runs. NaN and
infinity are left as they are, and what several ranks make together otherwise, which also shows how it was
put together. So is what begins after the last loss and comes out of the model, of which the next step's loss
may be made.

In a coarse dtype gradients may differ by so much that none of this can be said. Two things are known there
all the same. Positions that are as far apart as the other run's, wherever one token may see the other, are
the same to all that looks at distances; what looks at them alone has no gradient, and all that has one must
agree. And where a mask of the loss differs and what is sent back to the model's output with it, by d, but
gradients of weights, as they are, by a hundredth of that, what came in cancels.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, EQUAL, ORIGIN, UNDECIDED, UNMATCHED, WITHIN, Judgement
from trueup.comparing.metrics import STATISTICS, Metrics
from trueup.comparing.positions import positions_given
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.comparing.thresholds import UNFELT
from trueup.numerics.dtypes import unit_roundoffs
from trueup.store.same_rows import MASK, POSITION
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status


def _without_effect(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, status = context.rows, judgement.status
    inside = (
        _inside(rows) | _masks_of_the_loss(rows) | _exchanged_for_the_loss(rows) | _exchanged_inside(rows)
    )
    differ = status == DIFFERENT
    longer = np.zeros(len(rows), bool) if context.longer_rows is None else context.longer_rows
    left = (inside | longer | _batch_in_another_shape(rows, judgement)) & ~judgement.bracketable
    left &= (status == UNDECIDED) | (status == UNMATCHED)
    if context.is_merged or not (differ | left).any() or (differ & ~inside).any():
        return judgement
    felt = _felt(rows, metrics, judgement)
    whys = [judgement.reasons.get(row) for row in np.flatnonzero(differ).tolist()]
    not_finite = any(why is not None and why.code is RecordCode.NOT_FINITE for why in whys)
    if felt is None:
        return judgement
    is_seen = felt * UNFELT <= 1
    if is_seen:
        judgement = judgement.at(left, bracketable=True)
    begins = judgement.attribution.status == ORIGIN
    acts_later = _of_weights_in_evaluation(rows, judgement) or _comes_out_later(rows, metrics, begins)
    if not_finite or acts_later:
        return judgement
    # Where all is explained by inputs that differ within their tolerance, any of it may be where it begins.
    gaps = metrics.rel_l2[begins if begins.any() else differ]
    if not (is_seen and len(gaps) and (gaps >= UNFELT * felt).all()):
        if not _are_distances(context, differ) and not _cancels(rows, metrics, judgement, differ):
            return judgement
        judgement = judgement.at(left & rows.paired, bracketable=True)
    why = Reason(RecordCode.WITHOUT_EFFECT)
    found = judgement.at(differ, status=UNDECIDED, score=np.nan, bracketable=True, why=why)
    return found.attributed(differ, UNDECIDED)


def _batch_in_another_shape(rows: StepRows, judgement: Judgement) -> Bools:
    """Ids that the model trains on in another shape, one row without padding for padded rows.

    Nothing is known to differ, and what comes of other ids shows in the gradient of the table that they look
    up. Of what the model is given in evaluation nothing shows.
    """
    shaped = [row for row, why in judgement.reasons.items() if why.code is RecordCode.SHAPE_DIFFERS]
    found = np.zeros(len(rows), bool)
    found[shaped] = True
    return found & _of_the_batch(rows) & rows.mode_is("train")


def _comes_out_later(rows: StepRows, metrics: Metrics, begins: Bools) -> bool:
    """Whether a difference begins after the step's last loss, so that neither that nor a gradient felt it,
    and what the model returned then differs by more than ``1 / UNFELT`` of it: a teacher that is asked for
    the next step, say."""
    losses = np.flatnonzero(rows.phase_is("loss"))
    at = np.arange(len(rows))
    late = begins & (at > losses[-1]) & rows.phase_is("forward")
    if not late.any():
        return False
    returned = rows.phase_is("forward") & rows.kind_is("module") & rows.slot_starts("output") & rows.paired
    returned &= (rows.of_call("parent") < 0) & (at > np.argmax(late))
    gap = float(metrics.rel_l2[late].min())
    return not returned.any() or bool((metrics.rel_l2[returned] * UNFELT > gap).any())


def _are_distances(context: StepContext, differ: Bools) -> bool:
    """Whether what differs is positions with the same distances, and what is made of positions alone: it has
    no gradient."""
    given, kept = positions_given(context.rows) & differ, context.same_distances
    if kept is None or not given.any() or not kept[given].all():
        return False
    rows = context.rows
    plain = rows.paired & rows.phase_is("forward")
    for half in (rows.target, rows.reference):
        requires = half.tables.records["requires_grad"].fill_null(True).to_numpy()
        plain &= ~requires[half.record]
    return bool(plain[differ].all())


def _cancels(rows: StepRows, metrics: Metrics, judgement: Judgement, differ: Bools) -> bool:
    """Whether a mask of the loss differs, and beside it nothing but what is sent back: to the model's output
    by ``UNFELT`` times what gradients of weights differ by."""
    masks = _masks_of_the_loss(rows) & (differ | (judgement.status == UNDECIDED))
    sent = rows.paired & rows.phase_is("backward") & rows.kind_is("module")
    if not masks.any() or (differ & ~masks & ~sent).any():
        return False
    out = sent & (rows.of_call("parent") < 0) & rows.slot_starts("output")
    out &= np.isin(rows.microbatch, rows.microbatch[masks]) & differ
    grads = rows.phase_is("param_grad")
    apart = np.where(judgement.status == EQUAL, 0.0, metrics.rel_l2)[grads]
    return bool(out.any() and metrics.rel_l2[out].min() >= UNFELT * np.median(apart))


def _of_weights_in_evaluation(rows: StepRows, judgement: Judgement) -> bool:
    """Whether evaluation of a model gives something else, and that begins in a layer that was given the same
    bits: its weights differ, of a model that no gradient reaches (the average of the trained weights)."""
    begins, equal = judgement.attribution.status == ORIGIN, judgement.status == EQUAL
    calls, differ = rows.target.call, judgement.status == DIFFERENT
    made = rows.mode_is("eval") & rows.kind_is("module") & rows.slot_starts("output")
    if not (differ & made & (rows.of_call("parent") < 0)).any():
        return False
    given = rows.phase_is("forward") & rows.slot_starts("input")
    parents = set(rows.match.target.parent.tolist())
    for row in np.flatnonzero(begins & made & rows.paired).tolist():
        inputs = given & (calls == calls[row])
        if int(calls[row]) not in parents and inputs.any() and equal[inputs].all():
            return True
    return False


def _felt(rows: StepRows, metrics: Metrics, judgement: Judgement) -> float | None:
    """Relative difference of the gradient of a weight, the median of all, that would show; None where one of
    them differs, or the loss does, or not all is known of them."""
    grads, losses = rows.phase_is("param_grad"), rows.phase_is("loss") & rows.slot_is("value")
    agrees = (judgement.status == EQUAL) | (judgement.status == WITHIN)
    if not grads.any() or not losses.any() or not agrees[grads | losses].all():
        return None
    if not (metrics.evidence[grads] < STATISTICS).all():
        return None
    bounds = np.where(judgement.status == EQUAL, 0.0, judgement.tolerance)[grads]
    return float(np.median(np.nan_to_num(bounds, nan=np.inf)))


def _inside(rows: StepRows) -> Bools:
    """Records of what modules, functions inside of them, and functions that backward goes through are given
    and make, forward and backward."""
    within, backward = np.zeros(len(rows), bool), rows.phase_is("backward")
    for half, side in ((rows.target, rows.match.target), (rows.reference, rows.match.reference)):
        there = half.record >= 0
        differentiated = np.zeros(side.num_calls + 1, bool)
        differentiated[half.call[there & backward]] = True
        within |= there & ((side.parent[half.call] >= 0) | differentiated[half.call])
    within |= rows.kind_is("module")
    within &= rows.phase_is("forward", "backward") & rows.kind_is("module", "api")
    return np.asarray(within & ~_of_the_batch(rows))


def _exchanged_for_the_loss(rows: StepRows) -> Bools:
    """What ranks exchange between the model and the loss of each token, as a cross entropy of a vocabulary in
    parts does. Fewer numbers than there are tokens may be a report (a sum and a count), which no gradient
    feels."""
    exchanged = rows.paired & rows.phase_is("collective")
    tokens = float(rows.reference.numel[_of_the_batch(rows)].max(initial=0.0))
    losses = np.flatnonzero(rows.phase_is("loss"))
    if tokens < 2 or not len(losses) or not exchanged.any():
        return np.zeros(len(rows), bool)
    floating = ~np.isnan(unit_roundoffs(rows.match.words.dtype)[rows.reference.dtype])
    of_tokens = np.nan_to_num(rows.reference.numel) % tokens == 0
    return np.asarray(exchanged & floating & of_tokens & (np.arange(len(rows)) < losses[-1]))


def _exchanged_inside(rows: StepRows) -> Bools:
    """What ranks exchange while a module computes, and between the gradients that backward makes: squares for
    a variance of all ranks, or what is left of them without the mean. What stands after backward may be a
    report."""
    exchanged = rows.paired & rows.phase_is("collective")
    within = np.zeros(len(rows), bool)
    if not exchanged.any():
        return within
    for half, side in ((rows.target, rows.match.target), (rows.reference, rows.match.reference)):
        within |= (half.record >= 0) & (side.parent[half.call] >= 0)
    made = rows.phase_is("backward") | (rows.phase_is("param_grad") & rows.slot_is("local"))
    others, at = np.flatnonzero(~rows.phase_is("collective") & rows.paired), np.flatnonzero(exchanged)
    after = np.searchsorted(others, at)
    between = (after > 0) & (after < len(others))
    at, after = at[between], after[between]
    within[at] |= made[others[after - 1]] & made[others[after]]
    return np.asarray(exchanged & within)


def _of_the_batch(rows: StepRows) -> Bools:
    """Whole numbers that the program gives the model, ids: they are data, whatever comes of them. A mask may
    be filled with another number and hide the same, positions may keep their distances."""
    words = rows.match.words
    masks = np.array([MASK in word or POSITION in word for word in words.slot] + [False])[rows.slot]
    whole = np.isnan(unit_roundoffs(words.dtype))[rows.reference.dtype]
    given = rows.paired & rows.kind_is("module") & rows.phase_is("forward") & rows.slot_starts("input")
    return np.asarray(given & (rows.of_call("parent") < 0) & whole & ~masks)


def given_to_the_program(rows: StepRows) -> Bools:
    """Of what is settled here, what the program chooses: positions, and what weighs the loss."""
    return np.asarray(positions_given(rows) | _masks_of_the_loss(rows))


def _masks_of_the_loss(rows: StepRows) -> Bools:
    masks = np.array([MASK in word for word in rows.match.words.slot] + [False])[rows.slot]
    return np.asarray(rows.paired & rows.phase_is("loss") & masks)


RULE = Rule(
    apply=_without_effect,
    codes=(RecordCode.WITHOUT_EFFECT,),
    statuses=(Status.UNDECIDED,),
    place="last: it asks where what differs begins, and whether anything but the inside of the model differs",
    note="0038-what-comes-out-nowhere",
)
