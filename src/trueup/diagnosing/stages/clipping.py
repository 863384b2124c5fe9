"""Clipping and loss scale: what a run did to all its gradients at once, against what the reference did."""

from __future__ import annotations

import math
from dataclasses import replace

from trueup.diagnosing.gradients import scalar_line
from trueup.diagnosing.ledger import Clipping, clipping, factor_rounding, way_of
from trueup.diagnosing.optimizer_fit import roundoff_of
from trueup.diagnosing.stages.clipping_ranks import axis_of_norm, norms_of_all_ranks
from trueup.diagnosing.stages.context import Context, is_beyond
from trueup.diagnosing.stages.copies import parts_of
from trueup.diagnosing.stages.naming import described, kind_named, place_of
from trueup.diagnosing.stages.trainable import frozen_on_one_side
from trueup.diagnosing.thresholds import CLIP_EXACT, CLIP_NEAR, SAME_FACTOR, SAME_NORM
from trueup.diagnosing.whose import axis_of_factor, axis_of_factors, of_ranks
from trueup.merging.trace import MergedTrace
from trueup.store import StepView, TraceSource
from trueup.store.view import ACCUMULATED, CLIPPED
from trueup.types.codes import ClippingCode as Clip
from trueup.types.codes import Code
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.layout import Layout
from trueup.types.reason import Reason, reason

Difference = tuple[str, Reason, Reason]
"""name of the kind, headline, evidence"""


def loss_scale_findings(context: Context) -> tuple[list[Finding], list[Reason]]:
    """One finding where the losses were multiplied by another scale before backward, and gradients in one
    scale differ, or a step was left out; where they agree the scale is only told."""
    rank = context.ranks[0]
    for at, (step, other) in enumerate(context.steps[:2]):
        target, reference = (
            scalar_line(source, rank, number)
            for source, number in ((context.target, step), (context.reference, other))
        )
        scales = target.get("loss_scale"), reference.get("loss_scale")
        if None in scales or scales[0] == scales[1]:
            continue
        differs = reason(Clip.LOSS_SCALE, step=step, target=scales[0], reference=scales[1])
        gradients = context.of_phases("backward", "param_grad", at=at)
        same_steps = target.get("skipped") == reference.get("skipped")
        if same_steps and gradients.filter(is_beyond()).is_empty() and gradients.height:
            return [], [differs]
        cause = reason(Clip.LOSS_SCALE_CAUSE)
        kind = kind_named("wrong_scale", EvidenceRank.FITTED, differs, causes=(cause,))
        finding = Finding(
            stage=Stage.REDUCTION,
            headline=differs,
            module=None,
            site="loss scale",
            phase="loss",
            step=step,
            rank=rank,
            kinds=(kind,),
            basis=Basis.RECORDED if at == 0 else Basis.FITTED,
            evidence=(differs,),
            causes=kind.causes,
            next_note=reason(Clip.SAME_LOSS_SCALE),
        )
        return [finding], []
    return [], []


# In one piece: one pass over the ranks; what a rank shows is weighed against those before it.
def clipping_findings(context: Context) -> tuple[list[Finding], list[Reason]]:
    """The first rank whose clipping differs, with all others that do, or what all do. Of the gradient replay
    where there is one: there both sides clip the very same gradients."""
    agree: list[Reason] = []
    found: dict[int, tuple[Finding, tuple[float, float]]] = {}
    ratio = 1.0
    for rank in context.ranks:
        own = clipping_of(context, context.target, context.steps[0][0], rank)
        other = clipping_of(context, context.reference, context.steps[0][1], rank)
        if own is None or other is None:
            continue
        scale = scalar_line(context.target, rank, context.steps[0][0]).get("loss_scale") or 1.0
        given = None if other.way == "later" else _given_clipping(context, other, rank)
        if given is not None and given.way != other.way and "each" in (given.way, other.way):
            given = None  # some gradients are reduced in between, on the way that a free run takes
        own = own if {"value", "own"} & {own.way, other.way} else given or own
        difference = _averaged(own, other, context.layout) or _clipping_difference(own, other, scale)
        if (
            difference is not None
            and difference[1].code is Clip.NORM_DIFFERS
            and (
                _one_norm_of_all(context) or (len(context.ranks) > 1 and not _same_parameters(context, rank))
            )
        ):
            difference = None
        if difference is not None and difference[1].code in _LIMITS:
            own, other = _of_all_ranks(own, other, context)
            difference = _clipping_difference(own, other, scale) or difference
        if difference is not None and difference[1].code is Clip.REPORTED_NORM:
            difference = None if _norms_of_what_is_held(own, other, context, rank) else difference
        if difference is not None:
            made = _finding(difference, own, other, context, rank, given=given is not None)
            found[rank] = made, (own.factor, other.factor)
            ratio = own.clipped_norm / other.clipped_norm if other.clipped_norm else 1.0
            continue
        agree.append(_both(own, other))
    if not found:
        return [], agree[:1]
    sides = [{rank: factors[side] for rank, (_, factors) in found.items()} for side in (0, 1)]
    own_norms = norms_of_own_parts(context) if len(found) == len(context.ranks) else None
    if own_norms is not None:
        return [replace(own_norms, axis=axis_of_factors(sides[0], sides[1], context.mesh))], []
    first, factors = next(iter(found.values()))
    if first.kinds[0].name == "wrong_scale" and factors[1] and len(found) == len(context.ranks):
        axis = axis_of_factor(factors[0] / factors[1], context.layout, near=CLIP_EXACT)
        first = replace(first, axis=axis)
    if len(found) < len(context.ranks):
        return [of_ranks(first, found, context.ranks, context.mesh)], []
    if isinstance(context.target, MergedTrace):
        books = parts_of(context.target, context.steps[0][0])
        return [replace(first, axis=first.axis or axis_of_norm(ratio, books, context.layout))], []
    return [replace(first, axis=first.axis or axis_of_factors(sides[0], sides[1], context.mesh))], []


_LIMITS = (Clip.NORM_DIFFERS, Clip.TARGET_ONLY, Clip.REFERENCE_ONLY)
"""what is said in numbers of a norm"""


def _of_all_ranks(own: Clipping, other: Clipping, context: Context) -> tuple[Clipping, Clipping]:
    """With the norms of all ranks, where they hold parts of the gradients and scale them by one factor: that
    of one rank's part is no limit."""
    if len(context.ranks) == 1 or isinstance(context.target, MergedTrace):
        return own, other
    sides = (context.target, own), (context.reference, other)
    whole = []
    for (source, clip), step, together in zip(
        sides, context.steps[0], norms_of_all_ranks(context), strict=True
    ):
        every = [clipping_of(context, source, step, rank) for rank in context.ranks]
        one_factor = all(
            one is not None and one.way == clip.way and abs(one.factor / clip.factor - 1) <= CLIP_NEAR
            for one in every
        )
        if not one_factor or not clip.clipped_norm or not together:
            return own, other
        held = clip.norm / clip.clipped_norm
        whole.append(replace(clip, norm=together * held, clipped_norm=together))
    return whole[0], whole[1]


def norms_of_own_parts(context: Context, ways: tuple[str, ...] = ("norm",)) -> Finding | None:
    """One finding where every rank of the target clips what it holds to the norm that all ranks of the
    reference clip to together. In the way ``later`` some gradients are summed over ranks between backward and
    clipping, so that no factor tells: that the norms of all ranks are one number does."""
    if len(context.ranks) == 1 or isinstance(context.target, MergedTrace):
        return None
    step = context.steps[0][0]
    clips = [clipping_of(context, context.target, step, rank) for rank in context.ranks]
    held = [clip.clipped_norm for clip in clips if clip is not None and clip.way in ways]
    together = norms_of_all_ranks(context)
    if len(held) < len(clips) or not together[1] or abs(together[0] / together[1] - 1) <= CLIP_NEAR:
        return None
    if any(abs(norm / together[1] - 1) > CLIP_NEAR for norm in held):
        return None
    own = reason(Clip.NORM_OF_OWN_PART, norm=held[0], together=together[0], reference=together[1])
    kind = kind_named(
        "missing_all_reduce", EvidenceRank.EVERY_ELEMENT, own, causes=(reason(Clip.NORM_CAUSE),)
    )
    return Finding(
        stage=Stage.REDUCTION,
        headline=own,
        module=None,
        site="gradient clipping",
        phase="param_grad",
        step=step,
        rank=context.ranks[0],
        kinds=(kind,),
        basis=Basis.RECORDED,
        evidence=(own,),
        causes=kind.causes,
        next_note=reason(Clip.COMPARE_NORMS),
    )


def _one_norm_of_all(context: Context) -> bool:
    """Whether the ranks together clip to one norm on both sides."""
    if len(context.ranks) == 1:
        return False
    target, reference = norms_of_all_ranks(context)
    return bool(reference) and abs(target / reference - 1) <= CLIP_NEAR


def _finding(
    difference: Difference,
    own: Clipping,
    other: Clipping,
    context: Context,
    rank: int,
    *,
    given: bool,
) -> Finding:
    kind, headline, evidence = difference
    causes: tuple[Code, ...] = Clip.LIMIT_CAUSE, Clip.NORM_CAUSE
    clipped_first = headline.code in (Clip.CLIPPED_SCALED, Clip.SCALED_IN_REFERENCE)
    if headline.code is Clip.REFERENCE_ONLY:
        causes = Clip.NOT_CALLED_CAUSE, Clip.LIMIT_CAUSE
    if headline.code is Clip.MULTIPLIED_DIFFERS:
        causes = ()
    if headline.code is Clip.NORM_TYPE:
        causes = (Clip.NORM_TYPE_CAUSE,)
    if headline.code is Clip.VALUES_DIFFER:
        causes = (Clip.VALUE_CAUSE,)
    if headline.code is Clip.OWN_NORMS:
        causes = (Clip.OWN_NORMS_CAUSE,)
    if clipped_first or headline.code in (Clip.SCALED_BEFORE, Clip.UNSCALED_TWICE):
        causes = (CauseCode.UNSCALED_OR_CLIPPED,) if clipped_first else ()
    module, site = None, "gradient clipping"
    few = [] if {"value", "own"} & {own.way, other.way} else [fqn for fqn, _ in own.uneven]
    if few and not other.uneven and 2 * len(few) < len(context.matched):
        summed = (Clip.SUM_CAUSE,) if context.layout.wide_axes else ()
        kind, causes = "missing_or_extra_term", (*summed, Clip.SOME_SCALED_CAUSE)
        book = context.book(context.target, context.steps[0][0], rank)
        every = context.matched
        shapes = {f: book.shape(book.parameter(f, *CLIPPED)) or () for f in every}
        module, site = place_of(few, shapes), f"{few[0]} · gradient clipped"
        headline = reason(Stages.CHANGED, parameters=described(few, shapes))
    known = tuple(map(reason, causes)) or None
    named = kind_named(kind, EvidenceRank.EVERY_ELEMENT, evidence, causes=known, phase="param_grad")
    return Finding(
        stage=Stage.REDUCTION,
        headline=headline,
        module=module,
        site=site,
        phase="param_grad",
        step=context.steps[0][0],
        rank=rank,
        kinds=(named,),
        basis=Basis.RECORDED,
        evidence=(evidence, _both(own, other)),
        counter_evidence=(reason(Stages.GIVEN_COUNTER),) if given else (),
        causes=named.causes,
        next_note=reason(Clip.COMPARE_CODE),
    )


def clipping_of(context: Context, source: TraceSource, step: int, rank: int) -> Clipping | None:
    """What one run did to its gradients on one rank."""
    line = scalar_line(source, rank, step)
    return clipping(
        context.book(source, step, rank),
        loss_scale=line.get("loss_scale"),
        reported=line.get("grad_norm"),
        num_ranks=len(source.steps().get(step, ())),
    )


def _given_clipping(context: Context, reference: Clipping, rank: int) -> Clipping | None:
    """What the target's clipping made of the reference's gradients: their norm is the reference's. None
    without a gradient replay."""
    if context.given is None or context.given_step is None:
        return None
    if rank not in context.given.steps()[context.given_step]:
        return None
    book = context.book(context.given, context.given_step, rank)
    reference_book = context.book(context.reference, context.steps[0][1], rank)
    if frozen_on_one_side(context) or not _same_parameters(context, rank):
        return None  # a frozen weight, or one that the reference lacks, can be given no gradient
    line = scalar_line(context.given, rank, context.given_step)
    factors = {}
    after = 0.0
    for fqn in book.parameters_with(*CLIPPED):
        other = context.matched.get(fqn)
        a = reference_book.shared_sketch(reference_book.parameter(other, *ACCUMULATED)) if other else None
        c = book.sketch(book.parameter(fqn, *CLIPPED))
        after += (book.norm(book.parameter(fqn, *CLIPPED)) or 0.0) ** 2
        if a is not None and c is not None and a @ a > 0:
            factors[fqn] = (
                float(a @ c)
                / float(a @ a)
                * (scalar_line(context.reference, rank, context.steps[0][1]).get("loss_scale") or 1.0)
            )
    if not factors:
        return None
    ordered = sorted(factors.values())
    common = ordered[len(ordered) // 2]
    rounding = factor_rounding(book)
    unchanged = max(
        (rounding[f] for f in factors if _is_rounded_in(f, book, reference_book, context)), default=0.0
    )
    way, uneven = way_of(factors, common, rounding, unchanged=max(CLIP_EXACT, unchanged))
    return Clipping(
        way=way,
        norm=reference.norm,
        clipped_norm=common * reference.norm if way == "norm" else math.sqrt(after),
        factor=common,
        limit=None,
        reported=line.get("grad_norm"),
        uneven=uneven,
        largest=reference.largest,
    )


def _is_rounded_in(fqn: str, book: StepView, reference_book: StepView, context: Context) -> bool:
    """Whether a gradient of the reference was put into a coarser dtype than its own."""
    other = reference_book.parameter(context.matched.get(fqn, fqn), *ACCUMULATED)
    held = book.dtype(book.parameter(fqn, *CLIPPED)), reference_book.dtype(other)
    return roundoff_of(held[0]) > roundoff_of(held[1])


def _norms_of_what_is_held(own: Clipping, other: Clipping, context: Context, rank: int) -> bool:
    """Whether each run's reported norm is that of the gradients its optimizer is given, and one of the two is
    given fewer: then the norms follow from what the optimizers hold."""
    held = []
    for book, clip in zip(context.pair(0, rank), (own, other), strict=True):
        norms = {fqn: book.norm(book.parameter(fqn, *ACCUMULATED)) or 0.0 for fqn in book.parameters}
        given = {fqn for fqn in norms if book.parameter(fqn, *CLIPPED) is not None}
        every, of_given = (math.hypot(*(norms[fqn] for fqn in names)) for names in (norms, given))
        if not every or not clip.reported:
            return False
        if abs(clip.reported / (clip.norm * of_given / every) - 1) > CLIP_NEAR:
            return False
        held.append(given)
    return {context.matched.get(fqn) for fqn in held[0]} != held[1]


def _same_parameters(context: Context, rank: int) -> bool:
    """Whether every gradient of one run has a counterpart in the other: a norm is of all of them."""
    own, other = (
        {fqn for fqn in book.parameters if book.parameter(fqn, *ACCUMULATED) is not None}
        for book in context.pair(0, rank)
    )
    return {context.matched.get(fqn) for fqn in own} == other


def _clipping_difference(own: Clipping, other: Clipping, scale: float) -> Difference | None:
    if "later" in (own.way, other.way):
        return _later_difference(own, other)
    if "own" in (own.way, other.way):
        return _own_norm_difference(own, other)
    counted = _norm_difference(own, other, scale)
    if counted is not None:
        return counted
    if own.way == other.way == "none":
        return None
    scaled = _scaled_difference(own, other)
    if scaled is not None:
        return scaled
    if "each" in (own.way, other.way) or "value" in (own.way, other.way):
        if own.way == other.way:
            return _factor_difference(own, other) or _value_difference(own, other)
        if _is_below_value(own, other) or _is_below_value(other, own):
            return None
        return "wrong_optimizer_setting", reason(Clip.METHOD_DIFFERS), _both(own, other)
    if own.way == "norm" and other.way == "norm":
        near = max(CLIP_NEAR, own.rounding, other.rounding)
        if _one_factor(own, other):
            return None
        if abs(own.clipped_norm - other.clipped_norm) <= near * abs(other.clipped_norm):
            return None
        return _limit_difference(Clip.NORM_DIFFERS, own.clipped_norm, other.clipped_norm)
    if own.way == "norm":
        if own.norm > other.norm * (1 + CLIP_NEAR) and own.clipped_norm >= other.norm * (1 - CLIP_NEAR):
            return None  # the reference's are below the same limit
        return _limit_difference(Clip.TARGET_ONLY, own.clipped_norm, other.norm)
    if own.norm <= other.clipped_norm * (1 + CLIP_NEAR):
        return None
    return _limit_difference(Clip.REFERENCE_ONLY, own.norm, other.clipped_norm)


def _one_factor(own: Clipping, other: Clipping) -> bool:
    """Whether both runs multiply gradients of unequal norms by one number: a loss scale is divided out, or a
    sum. What clips to a norm multiplies by the limit over the norm, another number for each."""
    apart = abs(own.factor - other.factor)
    return apart <= max(CLIP_EXACT, own.rounding, other.rounding) * abs(other.factor)


def _is_scaled(clip: Clipping) -> bool:
    """Whether all gradients were multiplied by what no clipping multiplies by: it never makes them larger,
    nor turns them round."""
    return clip.way == "norm" and (clip.factor <= 0 or clip.factor > 1 + max(CLIP_EXACT, clip.rounding))


def _scaled_difference(own: Clipping, other: Clipping) -> Difference | None:
    """Other factors of all gradients, of which one at least is none of clipping."""
    if {own.way, other.way} - {"none", "norm"} or not (_is_scaled(own) or _is_scaled(other)):
        return None
    least = max(CLIP_EXACT if "none" in (own.way, other.way) else CLIP_NEAR, own.rounding, other.rounding)
    if abs(own.factor - other.factor) <= least * max(abs(own.factor), abs(other.factor)):
        return None
    differs = reason(Clip.MULTIPLIED_DIFFERS, target=own.factor, reference=other.factor)
    return "wrong_scale", differs, differs


def _value_difference(own: Clipping, other: Clipping) -> Difference | None:
    """Elements that are cut at other values."""
    if own.limit is None or other.limit is None or abs(own.limit / other.limit - 1) <= CLIP_NEAR:
        return None
    differs = reason(Clip.VALUES_DIFFER, target=own.limit, reference=other.limit)
    return "wrong_optimizer_setting", differs, differs


def _own_norm_difference(own: Clipping, other: Clipping) -> Difference | None:
    """One side or both cut each gradient to a norm."""
    clips = {"target": own, "reference": other}
    limits = {side: clip.limit for side, clip in clips.items() if clip.way == "own" and clip.limit}
    if len(limits) == len(clips):
        least, most = sorted(limits.values())
        differs = reason(Clip.OWN_NORMS_DIFFER, target=limits["target"], reference=limits["reference"])
        return None if most <= least * (1 + CLIP_NEAR) else ("wrong_optimizer_setting", differs, differs)
    ((side, limit),) = limits.items()
    uncut = other if side == "target" else own
    if uncut.way == "none" and uncut.norm <= limit * (1 + CLIP_NEAR):
        return None
    return "wrong_optimizer_setting", reason(Clip.OWN_NORMS, side=side, limit=limit), _both(own, other)


def _is_below_value(uncut: Clipping, cut: Clipping) -> bool:
    """Whether one run's elements are all below the value that the other cuts at: it would cut none."""
    if (uncut.way, cut.way) != ("none", "value") or uncut.largest is None or cut.limit is None:
        return False
    return uncut.largest <= cut.limit * (1 + CLIP_NEAR)


def _limit_difference(code: Clip, target: float, reference: float) -> Difference:
    differs = reason(code, target=target, reference=reference)
    return "wrong_optimizer_setting", differs, differs


def _averaged(own: Clipping, other: Clipping, layout: Layout) -> Difference | None:
    """Gradients that one side leaves as they are and the other multiplies by a number of processes."""
    if {own.way, other.way} != {"none", "norm"} or abs(own.norm / other.norm - 1) > CLIP_EXACT:
        return None
    if not other.factor:
        return None
    factor = own.factor / other.factor
    axis = axis_of_factor(factor, layout, near=CLIP_EXACT)
    if axis is None:
        return None
    scaled = reason(Clip.SCALED_BY_RANKS, factor=factor, axis=axis, size=layout.mesh[axis])
    return "wrong_scale", scaled, scaled


def _factor_difference(own: Clipping, other: Clipping) -> Difference | None:
    """Gradients of the same norm that most of get another factor, where some are reduced after backward."""
    same = abs(own.norm / other.norm - 1) <= SAME_NORM
    if own.way != "each" or not same or abs(own.factor / other.factor - 1) <= CLIP_NEAR:
        return None
    differs = reason(Clip.FACTOR_DIFFERS, target=own.factor, reference=other.factor)
    return "wrong_scale", differs, differs


def _later_difference(own: Clipping, other: Clipping) -> Difference | None:
    """Only of the programs' own norms something is known: both sides must clip to the same one."""
    cut = [clip.way == "later" and clip.clipped_norm < clip.norm * (1 - SAME_NORM) for clip in (own, other)]
    alike = abs(own.clipped_norm - other.clipped_norm) <= SAME_FACTOR * other.clipped_norm
    if own.way != other.way or not any(cut) or alike:
        return None
    return _limit_difference(Clip.NORM_DIFFERS, own.clipped_norm, other.clipped_norm)


# In one piece: one branch an answer, the narrower ahead of the wider.
def _norm_difference(own: Clipping, other: Clipping, scale: float) -> Difference | None:
    """Whether the program's own norm is that of its gradients, on both sides alike.

    A target that clips to the reference's norm has the norm of what it clips: its gradients were multiplied
    on the way there; so were those of one whose norm is what the optimizer gets, of which nothing is cut. One
    whose norm is the loss scale times too large, and whose result is as much too small,
    clips before it divides by the scale, as one does that measures what backward left where the reference's
    norm is of what it multiplied; one whose norm is as much too small has divided twice. Else the norm
    itself is another.
    """
    if own.reported is None or other.reported is None or not own.norm or not other.norm:
        return None
    target, reference = own.reported / own.norm, other.reported / other.norm
    if abs(target / reference - 1) <= CLIP_NEAR:
        return None
    if own.reports_largest != other.reports_largest:
        side = "target" if own.reports_largest else "reference"
        largest = reason(Clip.NORM_TYPE, side=side, norm=(own if side == "target" else other).reported)
        return "wrong_optimizer_setting", largest, largest
    differs = reason(Clip.REPORTED_NORM, target=target, reference=reference)
    again = scale > 1 and abs(target * scale - 1) <= CLIP_NEAR and own.factor * scale <= 1 + CLIP_NEAR
    if again and abs(reference - 1) <= CLIP_NEAR:
        differs = reason(Clip.UNSCALED_TWICE, scale=scale)
    elif _is_uncut(own) and abs(reference - 1) <= CLIP_NEAR:
        differs = reason(Clip.SCALED_BEFORE, factor=target)
    elif _is_uncut(other) and abs(target - 1) <= CLIP_NEAR:
        differs = reason(Clip.SCALED_IN_REFERENCE, factor=reference)
    elif own.way == other.way == "norm" and other.clipped_norm and abs(reference - 1) <= CLIP_NEAR:
        clipped = own.clipped_norm / other.clipped_norm
        if abs(clipped - 1) <= CLIP_NEAR:
            differs = reason(Clip.SCALED_BEFORE, factor=target)
        elif abs(target / scale - 1) <= CLIP_NEAR and abs(clipped * scale - 1) <= CLIP_NEAR:
            differs = reason(Clip.CLIPPED_SCALED, scale=scale)
    return "wrong_scale", differs, differs


def _is_uncut(clip: Clipping) -> bool:
    """Whether clipping's own norm is that of what the optimizer gets: what lies between that and backward is
    a factor of the program's."""
    if clip.way != "norm" or not clip.reported or not clip.clipped_norm:
        return False
    return abs(clip.reported / clip.clipped_norm - 1) <= CLIP_NEAR


def _both(own: Clipping, other: Clipping) -> Reason:
    return reason(Clip.BOTH, _clipping(own), _clipping(other))


def _clipping(clip: Clipping) -> Reason:
    """What one run does."""
    is_cut = clip.clipped_norm < clip.norm
    if clip.way == "none" or (clip.way == "later" and not is_cut):
        return reason(Clip.NOT_CLIPPED, norm=clip.norm)
    if _is_uncut(clip):
        return reason(Clip.SCALED_UNCUT, norm=clip.norm, scaled=clip.clipped_norm)
    if _is_scaled(clip):
        return reason(Clip.MULTIPLIED, norm=clip.norm, factor=clip.factor)
    if clip.way in ("norm", "later"):
        return reason(Clip.TO_NORM, norm=clip.norm, clipped=clip.clipped_norm)
    if clip.way == "value":
        return reason(Clip.AT_VALUE, limit=clip.limit)
    if clip.way == "own":
        return reason(Clip.TO_OWN_NORM, limit=clip.limit)
    (fqn, factor), num = clip.uneven[0], len(clip.uneven)
    return reason(Clip.BY_PARAMETER, usual=clip.factor, num=num, parameter=fqn, factor=factor)
