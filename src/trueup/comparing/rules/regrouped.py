"""Work that one run cuts into other pieces: a loss in chunks, a projection called once for each part.

A call that was given another number of elements in the two runs, where all calls of its name together were
given as many in both, or that stands inside a module whose outputs agree, is not one computation: its results
cannot be held against each other, nor what was made of these alone. What they amount to can: where all that
leaves the model (its output, the loss, gradients of weights, updates) agrees in this step, by evidence that
shows every difference, such calls are left without a verdict. Where something does not agree, they are judged
like all others, so that the place of a fault is not hidden. An input of another size of a module whose
outputs agree is such a record too, and so is what holds padding that the other run does not have, where its
rows are not known (tokens sent to experts) or its microbatches are padded to other widths and cannot be put
together; and what ranks exchange packed in another order.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, EQUAL, UNDECIDED, WITHIN, Judgement
from trueup.comparing.metrics import NONE, STATISTICS, Metrics
from trueup.comparing.row_order import PADDED
from trueup.comparing.rows import StepRows
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.matching.codes import numbered
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import reason
from trueup.types.status import Status


def _regrouped(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows = context.rows
    inside = (rows.of_call("parent") >= 0) | rows.kind_is("api") | _of_recut_models(rows)
    inner = rows.paired & rows.phase_is("forward", "backward") & inside
    inner |= rows.paired & rows.phase_is("loss") & ~rows.slot_is("value")
    repacked = _repacked(context)
    inner |= repacked
    other_form = _in_another_form(rows, metrics, judgement)
    recut = inner & ((_of_other_size(rows) & _as_many_in_all(rows)) | _of_repeated(rows)) | other_form
    recut |= inner & _of_other_rows(rows) & _inside_what_agrees(rows, metrics, judgement)
    recut |= _padded_otherwise(rows, metrics) | repacked
    if not recut.any() or not _agrees_outside(rows, metrics, judgement, inner):
        return judgement
    recut |= _made_of(context, recut, inner & (judgement.status == DIFFERENT))
    differing = recut & (judgement.status == DIFFERENT)
    why = reason(RecordCode.REGROUPED)
    judged = judgement.at(differing, status=UNDECIDED, score=np.nan, why=why)
    left = recut & (judged.status == UNDECIDED)
    return judged.at(left | _of_these_calls(rows, recut), bracketable=True)


def _repacked(context: StepContext) -> Bools:
    """Exchanged buffers of the same size, norm and extremes as far as rounding tells: the same elements, as a
    rule, in another order."""
    rows = context.rows
    same = rows.paired & rows.phase_is("collective") & (rows.target.numel == rows.reference.numel)
    for name in ("l2_norm", "minimum", "maximum"):
        t, r = rows.target.statistics[name], rows.reference.statistics[name]
        with np.errstate(invalid="ignore"):
            same &= np.abs(t - r) <= context.rounding.relative * np.fmax(np.abs(t), np.abs(r))
    return np.asarray(same & (rows.reference.numel > 1))


def _of_recut_models(rows: StepRows) -> Bools:
    """Records of models that one run calls once for what the other calls them several times for."""
    roots = rows.kind_is("module") & (rows.of_call("parent") < 0) & rows.phase_is("forward", "backward")
    given = roots & rows.paired & rows.slot_starts("input") & _of_other_size(rows) & _as_many_in_all(rows)
    return np.asarray(roots & np.isin(rows.of_call("name"), rows.of_call("name")[given]))


def _of_other_size(rows: StepRows) -> Bools:
    t, r = rows.target, rows.reference
    both = (t.summary >= 0) & (r.summary >= 0) & (rows.layout < 0)
    return np.asarray(both & (t.numel != r.numel))


def _of_other_rows(rows: StepRows) -> Bools:
    """Of another size by their number of rows alone: a width is no matter of which rows a call is given."""
    known: dict[tuple[int, ...], int] = {}
    shapes = rows.match.words.shape
    wide = np.array(
        [known.setdefault(one[1:], len(known) + 1) if len(one) > 1 else 0 for one in shapes] + [0]
    )
    t, r = rows.target.shape, rows.reference.shape
    return np.asarray(_of_other_size(rows) & (wide[t] == wide[r]) & (wide[t] != 0))


def _in_another_form(rows: StepRows, metrics: Metrics, judgement: Judgement) -> Bools:
    """Inputs of another size of modules all of whose outputs agree (a mask of tokens for one of pairs), and
    labels of other sizes, with those that are ignored or without them."""
    forward = rows.paired & rows.phase_is("forward") & rows.kind_is("module")
    inputs = forward & rows.slot_starts("input") & _of_other_size(rows) & (metrics.evidence == NONE)
    good = _calls_that_agree(rows, metrics, judgement)
    labels = rows.paired & rows.phase_is("loss") & ~rows.slot_is("value") & _of_other_size(rows)
    return np.asarray((inputs & good[rows.target.call]) | (labels & (metrics.evidence == NONE)))


def _calls_that_agree(rows: StepRows, metrics: Metrics, judgement: Judgement) -> Bools:
    """By call of the target, and False after the last: modules all of whose outputs agree."""
    outputs = rows.paired & rows.phase_is("forward") & rows.kind_is("module") & rows.slot_starts("output")
    agrees = (judgement.status == EQUAL) | (judgement.status == WITHIN)
    num = rows.match.target.num_calls + 1
    good, bad = np.zeros(num, bool), np.zeros(num, bool)
    good[rows.target.call[outputs & agrees & (metrics.evidence < STATISTICS)]] = True
    bad[rows.target.call[outputs & ~agrees]] = True
    return np.asarray(good & ~bad)


def _inside_what_agrees(rows: StepRows, metrics: Metrics, judgement: Judgement) -> Bools:
    """Rows of calls inside a module, not the whole model, all of whose outputs agree: experts that are given
    all tokens and count for some, say."""
    good, parent = _calls_that_agree(rows, metrics, judgement), rows.match.target.parent
    around = np.append(parent, -1)
    found = np.zeros(len(good), bool)
    while (around >= 0).any():
        above = np.where(around >= 0, np.append(parent, -1)[around], -1)
        found |= (around >= 0) & (above >= 0) & good[around]
        around = above
    return np.asarray(found[rows.target.call])


def _padded_otherwise(rows: StepRows, metrics: Metrics) -> Bools:
    """Records without evidence, since one side's padding cannot be taken out."""
    unknown = np.array([layout.label == PADDED for layout in rows.layouts] + [False])[rows.layout]
    unknown &= rows.paired & (metrics.evidence == NONE)
    for half in (rows.target, rows.reference):
        reasons = half.tables.reasons
        apart = [row for row, why in reasons.items() if why.code is RecordCode.PARTS_NOT_MERGED]
        unknown |= rows.paired & (half.summary < 0) & np.isin(half.record, np.array(apart, np.int64))
    result = rows.phase_is("loss") & rows.slot_is("value")
    return np.asarray(unknown & rows.phase_is("forward", "backward", "loss") & ~result)


def _of_repeated(rows: StepRows) -> Bools:
    """Gradients of what one side repeats along a dimension and the other holds once: one is the sum of the
    other's along it."""
    repeated = np.array([layout.repeated is not None for layout in rows.layouts] + [False])
    forward = rows.phase_is("forward") & repeated[rows.layout]
    sites = set(zip(rows.target.call[forward].tolist(), rows.slot[forward].tolist(), strict=True))
    backward = np.flatnonzero(
        rows.paired & rows.phase_is("backward") & (rows.target.shape != rows.reference.shape)
    )
    found = np.zeros(len(rows), bool)
    for row in backward.tolist():
        found[row] = (int(rows.target.call[row]), int(rows.slot[row])) in sites
    return found


def _as_many_in_all(rows: StepRows) -> Bools:
    """Rows of which both sides have equally many elements over all calls of their name in a microbatch: at
    their input, in all outputs, in all parts of a loss's labels."""
    heads = [word.partition(".")[0] for word in rows.match.words.slot]
    head_of = np.array([*(heads.index(head) for head in heads), -1])
    parts = rows.phase_is("loss") | rows.slot_starts("output")
    slot = np.where(parts, len(heads) + head_of[rows.slot], rows.slot)
    group = numbered(rows.of_call("name"), rows.phase, slot, rows.microbatch)
    totals = [
        np.bincount(group, np.where(half.summary >= 0, half.numel, 0.0))
        for half in (rows.target, rows.reference)
    ]
    return np.asarray((totals[0] == totals[1])[group])


def _agrees_outside(rows: StepRows, metrics: Metrics, judgement: Judgement, inner: Bools) -> bool:
    """Whether what leaves the model agrees: its output or the loss, and all else that is no inner record."""
    outside = rows.paired & ~inner & (metrics.evidence != NONE)
    agrees = (judgement.status == EQUAL) | (judgement.status == WITHIN)
    results = outside & (
        (rows.phase_is("loss") & rows.slot_is("value"))
        | (rows.phase_is("forward") & rows.slot_starts("output"))
    )
    learned = outside & rows.phase_is("param_grad", "optimizer")
    shown = agrees & (metrics.evidence < STATISTICS)
    return bool((results & shown).any() and (learned & shown).any() and agrees[outside].all())


def _of_these_calls(rows: StepRows, recut: Bools) -> Bools:
    """Records that one run alone has of calls that are no one computation."""
    found = np.zeros(len(rows), bool)
    for half, other in ((rows.target, rows.reference), (rows.reference, rows.target)):
        found |= (other.record < 0) & np.isin(half.call, half.call[recut])
    return found & ~rows.paired


def _made_of(context: StepContext, recut: Bools, differing: Bools) -> Bools:
    """Differing records of calls that were given something recut, or what such calls made and nothing else
    that differs."""
    rows, first = context.rows, context.inflow.first
    inputs = rows.phase_is("forward") & rows.slot_starts("input")
    num_calls = rows.match.target.num_calls + 1
    while True:
        given = np.zeros(num_calls, bool)
        given[rows.target.call[recut & inputs]] = True
        other = np.zeros(num_calls, bool)
        other[rows.target.call[differing & ~recut & inputs]] = True
        made = differing & ~inputs & given[rows.target.call] & ~other[rows.target.call]
        grown = recut | made
        grown |= differing & inputs & grown[first] & (first < np.arange(len(rows)))
        if (grown == recut).all():
            return recut
        recut = grown


RULE = Rule(
    apply=_regrouped,
    codes=(RecordCode.REGROUPED,),
    statuses=(Status.UNDECIDED,),
    place="after all that decides whether a record differs: it asks whether anything outside does",
    note="0027-one-form-before-comparing",
)
