"""Clipping and loss scale: what a run did to all its gradients at once, against what the reference did."""

from __future__ import annotations

import math
from dataclasses import replace

from trueup.diagnosing.gradients import scalar_line
from trueup.diagnosing.ledger import Clipping, clipping
from trueup.diagnosing.stages.clipping_ranks import axis_of_norm, norms_of_all_ranks
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.copies import parts_of
from trueup.diagnosing.stages.naming import described, kind_named, place_of
from trueup.diagnosing.stages.trainable import frozen_on_one_side
from trueup.diagnosing.stepbook import ACCUMULATED, CLIPPED
from trueup.diagnosing.whose import axis_of_factor, axis_of_factors, of_ranks
from trueup.merging.trace import MergedTrace
from trueup.store import TraceSource
from trueup.types.finding import Finding, Stage
from trueup.types.layout import Layout

EXACT = 1e-5
"""relative difference within which a factor is a number of processes: sketches hold float32"""
_NEAR = 1e-3
"""relative difference within which two norms were clipped to one limit"""
_ANOTHER_NORM = "Gradients are clipped to another norm."
_NEXT = "compare what happens on both sides between backward and the optimizer's step"


def loss_scale_findings(context: Context) -> list[Finding]:
    """One finding where the losses were multiplied by another scale before backward."""
    for at, (step, other) in enumerate(context.steps[:2]):
        rank = context.ranks[0]
        mine = scalar_line(context.target, rank, step).get("loss_scale")
        theirs = scalar_line(context.reference, rank, other).get("loss_scale")
        if mine is not None and theirs is not None and mine != theirs:
            said = f"loss scale of step {step}: {mine:g} in the target, {theirs:g} in the reference"
            kind = kind_named(
                "wrong_scale", 0.9, said, causes=("another initial loss scale, or another rule of growth",)
            )
            return [
                Finding(
                    stage=Stage.REDUCTION,
                    headline=f"The loss scale is {mine:g} in the target, {theirs:g} in the reference.",
                    module=None,
                    site="loss scale",
                    phase="loss",
                    step=step,
                    rank=rank,
                    kinds=(kind,),
                    confidence=0.97 if at == 0 else 0.9,
                    evidence=(said,),
                    causes=kind.causes,
                    next_note="set the same loss scale on both sides; unscaled gradients may well agree",
                )
            ]
    return []


def clipping_findings(context: Context) -> tuple[list[Finding], list[str]]:
    """The first rank whose clipping differs, with all others that do, or what all do. Of the gradient replay
    where there is one: there both sides clip the very same gradients."""
    said: list[str] = []
    found: dict[int, tuple[Finding, tuple[float, float]]] = {}
    ratio = 1.0
    for rank in context.ranks:
        own = clipping_of(context, context.target, context.steps[0][0], rank)
        other = clipping_of(context, context.reference, context.steps[0][1], rank)
        if own is None or other is None:
            continue
        given = None if other.way == "later" else _given_clipping(context, other, rank)
        if given is not None and given.way != other.way and "each" in (given.way, other.way):
            given = None  # some gradients are reduced in between, on the way that a free run takes
        own = given or own
        difference = _averaged(own, other, context.layout) or _clipping_difference(own, other)
        if difference is not None and difference[1] == _ANOTHER_NORM and _one_norm_of_all(context):
            difference = None
        if difference is not None:
            made = _finding(difference, own, other, context, rank, given=given is not None)
            found[rank] = made, (own.factor, other.factor)
            ratio = own.clipped_norm / other.clipped_norm if other.clipped_norm else 1.0
            continue
        said.append(
            f"clipping: {_clipping_said(own)} in the target, {_clipping_said(other)} in the reference"
        )
    if not found:
        return [], said[:1]
    first, factors = next(iter(found.values()))
    if first.kinds[0].name == "wrong_scale" and len(found) == len(context.ranks):
        axis = axis_of_factor(factors[0] / factors[1], context.layout, near=EXACT)
        first = replace(first, axis=axis)
    if len(found) < len(context.ranks):
        return [of_ranks(first, found, context.ranks, context.mesh)], []
    if isinstance(context.target, MergedTrace):
        books = parts_of(context.target, context.steps[0][0])
        return [replace(first, axis=first.axis or axis_of_norm(ratio, books, context.layout))], []
    mine, theirs = ({rank: factors[side] for rank, (_, factors) in found.items()} for side in (0, 1))
    return [replace(first, axis=first.axis or axis_of_factors(mine, theirs, context.mesh))], []


def _one_norm_of_all(context: Context) -> bool:
    """Whether the ranks together clip to one norm on both sides."""
    if len(context.ranks) == 1:
        return False
    mine, theirs = norms_of_all_ranks(context)
    return bool(theirs) and abs(mine / theirs - 1) <= _NEAR


def _finding(
    difference: tuple[str, str, str],
    own: Clipping,
    other: Clipping,
    context: Context,
    rank: int,
    *,
    given: bool,
) -> Finding:
    kind, headline, said = difference
    causes = ("another limit for clipping", "another norm: over other parameters, or counted twice")
    module, site = None, "gradient clipping"
    few = [fqn for fqn, _ in own.uneven]
    if few and not other.uneven and 2 * len(few) < len(context.matched):
        kind, causes = "missing_or_extra_term", ("a sum over other ranks", "a factor for some weights alone")
        book = context.book(context.target, context.steps[0][0], rank)
        every = context.matched
        shapes = {f: (book.summary(book.parameter(f, *CLIPPED)) or {"shape": []})["shape"] for f in every}
        module, site = place_of(few, shapes), f"{few[0]} · gradient clipped"
        headline = f"The gradients of {described(few, shapes)} are changed after backward."
    named = kind_named(kind, 0.95, said, causes=causes)
    return Finding(
        stage=Stage.REDUCTION,
        headline=headline,
        module=module,
        site=site,
        phase="param_grad",
        step=context.steps[0][0],
        rank=rank,
        kinds=(named,),
        confidence=0.98 if given else 0.95,
        evidence=(said, f"target: {_clipping_said(own)}; reference: {_clipping_said(other)}"),
        counter_evidence=(
            ("with the reference's own gradients put in, so that nothing before matters",) if given else ()
        ),
        causes=named.causes,
        next_note=_NEXT,
    )


def clipping_of(context: Context, source: TraceSource, step: int, rank: int) -> Clipping | None:
    """What one run did to its gradients on one rank."""
    line = scalar_line(source, rank, step)
    return clipping(
        context.book(source, step, rank), loss_scale=line.get("loss_scale"), reported=line.get("grad_norm")
    )


def _given_clipping(context: Context, reference: Clipping, rank: int) -> Clipping | None:
    """What the target's clipping made of the reference's gradients: their norm is the reference's. None
    without a gradient replay."""
    if context.given is None or context.given_step is None:
        return None
    if rank not in context.given.steps()[context.given_step]:
        return None
    book = context.book(context.given, context.given_step, rank)
    theirs = context.book(context.reference, context.steps[0][1], rank)
    if frozen_on_one_side(context):
        return None  # a frozen weight can be given no gradient
    line = scalar_line(context.given, rank, context.given_step)
    factors = {}
    after = 0.0
    for fqn in book.in_order_of(*CLIPPED):
        other = context.matched.get(fqn)
        a = theirs.shared_sketch(theirs.parameter(other, *ACCUMULATED)) if other else None
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
    uneven = tuple((f, v) for f, v in factors.items() if abs(v - common) > 1e-3 * max(abs(common), 1e-12))
    way = "each" if uneven else "none" if abs(common - 1) < 1e-5 else "norm"
    return Clipping(
        way=way,
        norm=reference.norm,
        clipped_norm=common * reference.norm if way == "norm" else math.sqrt(after),
        factor=common,
        limit=None,
        reported=line.get("grad_norm"),
        uneven=uneven,
    )


def _clipping_difference(own: Clipping, other: Clipping) -> tuple[str, str, str] | None:
    if "later" in (own.way, other.way):
        return _later_difference(own, other)
    counted = _norm_difference(own, other)
    if counted is not None:
        return counted
    if own.way == other.way == "none":
        return None
    if "each" in (own.way, other.way) or "value" in (own.way, other.way):
        if own.way == other.way:
            return _factor_difference(own, other)
        said = f"{_clipping_said(own)} in the target, {_clipping_said(other)} in the reference"
        return "wrong_optimizer_setting", "Gradients are clipped in another way.", said
    if own.way == "norm" and other.way == "norm":
        if abs(own.clipped_norm / other.clipped_norm - 1) <= _NEAR:
            return None
        limits = f"{own.clipped_norm:.6g} in the target, {other.clipped_norm:.6g} in the reference"
        said = f"clipped to a norm of {limits}"
        return "wrong_optimizer_setting", _ANOTHER_NORM, said
    if own.way == "norm":
        if own.norm > other.norm * 1.001 and own.clipped_norm >= other.norm * 0.999:
            return None  # the reference's are below the same limit
        said = (
            f"the target clips to a norm of {own.clipped_norm:.6g}; the reference leaves a norm of "
            f"{other.norm:.6g} as it is"
        )
        return (
            "wrong_optimizer_setting",
            "The target clips gradients that the reference leaves as they are.",
            said,
        )
    if own.norm <= other.clipped_norm * 1.001:
        return None
    said = (
        f"the target leaves a norm of {own.norm:.6g} as it is; the reference clips to "
        f"{other.clipped_norm:.6g}"
    )
    return "wrong_optimizer_setting", "The target does not clip its gradients.", said


def _averaged(own: Clipping, other: Clipping, layout: Layout) -> tuple[str, str, str] | None:
    """Gradients that one side leaves as they are and the other multiplies by a number of processes."""
    if {own.way, other.way} != {"none", "norm"} or abs(own.norm / other.norm - 1) > EXACT:
        return None
    factor = own.factor / other.factor
    axis = axis_of_factor(factor, layout, near=EXACT)
    if axis is None:
        return None
    said = f"{factor:.6g} times in the target what they are in the reference; {axis} has {layout.mesh[axis]}"
    return "wrong_scale", "All gradients are scaled by a number of processes.", said


def _factor_difference(own: Clipping, other: Clipping) -> tuple[str, str, str] | None:
    """Gradients of the same norm that most of get another factor, where some are reduced after backward."""
    same = abs(own.norm / other.norm - 1) <= 1e-4
    if own.way != "each" or not same or abs(own.factor / other.factor - 1) <= 1e-3:
        return None
    ratio = own.factor / other.factor
    said = f"factor {own.factor:.6g} in the target, {other.factor:.6g} in the reference, {ratio:.4g} times"
    return (
        "wrong_scale",
        "The same gradients are clipped by another factor: the norm is counted otherwise.",
        said,
    )


def _later_difference(own: Clipping, other: Clipping) -> tuple[str, str, str] | None:
    """Only of the programs' own norms something is known: both sides must clip to the same one."""
    cut = [clip.way == "later" and clip.clipped_norm < clip.norm * (1 - 1e-4) for clip in (own, other)]
    if own.way != other.way or not any(cut) or abs(own.clipped_norm / other.clipped_norm - 1) <= 2e-3:
        return None
    said = f"clipped to {own.clipped_norm:.6g} in the target, {other.clipped_norm:.6g} in the reference"
    return "wrong_optimizer_setting", _ANOTHER_NORM, said


def _norm_difference(own: Clipping, other: Clipping) -> tuple[str, str, str] | None:
    """Whether the program's own norm is that of its gradients, on both sides alike."""
    if own.reported is None or other.reported is None or not own.norm or not other.norm:
        return None
    mine, theirs = own.reported / own.norm, other.reported / other.norm
    if abs(mine / theirs - 1) <= 1e-3:
        return None
    said = (
        f"the target's own grad norm is {mine:.6g} times the norm of its gradients, the reference's "
        f"{theirs:.6g} times"
    )
    return "wrong_scale", "The gradient norm is computed in another way.", said


def _clipping_said(clip: Clipping) -> str:
    if clip.way == "none":
        return f"not clipped (norm {clip.norm:.6g})"
    if clip.way in ("norm", "later"):
        return f"norm {clip.norm:.6g} clipped to {clip.clipped_norm:.6g}"
    if clip.way == "value":
        return f"every element cut at {clip.limit:.6g}"
    (fqn, factor), number = clip.uneven[0], len(clip.uneven)
    said = f"{number} not {clip.factor:.4g}, such as {fqn}: {factor:.4g}"
    return f"each parameter by a factor of its own ({said})"
