"""What a program does to weights from one backward to the next without an optimizer: sharpness-aware
minimisation steps up the gradient before a second pass and back after it, a program may update by itself.

With w0 and w1 the weights at the start of two steps, g the gradient of the first, d = w1 - w0 is

    d = a g + rest,    a = <d, g> / <g, g>,

over all weights together. d is known to the roundings of w1: what is left over of a move along the gradient
is no more than those.

An update that a program writes itself is made of the gradients. Where these have other bits (another kernel,
or a fault before), so has it: of SGD and of Adam from a new state, an element's move changes by no larger a
part than its gradient does, |dd| <= |d| |dg| / |g|, and one whose gradient changes its sign turns back. Moves
that are no further apart than twice that, a moment and the root of another, are no finding of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from trueup.diagnosing.optimizer_fit import roundoff_of
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.naming import described, place_of
from trueup.diagnosing.stages.own_update import OwnMove, own_constants
from trueup.diagnosing.thresholds import (
    MOVE_TAKEN_BACK,
    MOVE_WHOLE,
    UPDATE_APART,
    UPDATE_ROUNDINGS,
)
from trueup.store import StepView
from trueup.store.view import ACCUMULATED, CLIPPED, UPDATED, WEIGHT
from trueup.types.arrays import Floats
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, Finding, Stage
from trueup.types.reason import Reason, reason

_MOST_NUMBERS = 1 << 27
"""in all weights together, of which eight copies are held: costs memory"""


_Held = TypeVar("_Held")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """How one run moves its weights from the first step to the second, all together."""

    weights: dict[str, Floats]
    """d of each, by the target's names"""
    gradients: dict[str, Floats]
    rounding: float
    """of the weights, as a length"""
    roundoffs: dict[str, float] = field(default_factory=dict)
    """of each weight's dtype"""
    each: dict[str, OwnMove] = field(default_factory=dict)
    """of weights whose gradient is recorded"""

    @property
    def length(self) -> float:
        """||d||"""
        return _length(self.weights.values())

    def of(self, names: set[str]) -> Move:
        """Of some weights, whose roundings are those of each by itself."""

        def some(held: Mapping[str, _Held]) -> dict[str, _Held]:
            return {fqn: one for fqn, one in held.items() if fqn in names}

        weights, each = some(self.weights), some(self.each)
        squares = (each[fqn].rounding ** 2 * one.size for fqn, one in weights.items() if fqn in each)
        return Move(
            weights=weights,
            gradients=some(self.gradients),
            rounding=math.sqrt(sum(squares)),
            roundoffs=some(self.roundoffs),
            each=each,
        )

    @property
    def knows_gradients(self) -> bool:
        """Whether the gradient of each weight is recorded."""
        return self.gradients.keys() == self.weights.keys()

    def along_gradient(self) -> float | None:
        """a of d = a g; None where more than rounding is left over, or a gradient is not known."""
        if not self.knows_gradients:
            return None
        return _multiple(list(self.weights.values()), list(self.gradients.values()), self.rounding)


def moved_between(context: Context) -> list[Finding]:
    """One finding where moves differ, or one run alone takes them back; none where an optimizer steps in the
    first step, or no weight moves."""
    moves = moves_of(context)
    if moves is None:
        return []
    finest = min(moves[0].roundoffs.values())
    fine = {fqn for fqn, one in moves[0].roundoffs.items() if one == finest}
    if len(fine) < len(moves[0].weights) and (found := _found(context, *(one.of(fine) for one in moves))):
        return found  # weights of a coarse dtype, all together, are rounded by more than these may be apart
    return _found(context, *moves)


def _found(context: Context, target: Move, reference: Move) -> list[Finding]:
    names = [fqn for fqn, d in target.weights.items() if not np.array_equal(d, reference.weights[fqn])]
    if not names:
        return _kept(context, target)
    if not math.isfinite(target.length) or not math.isfinite(reference.length):
        return _not_finite(context, target, reference)
    apart = _length(target.weights[fqn] - reference.weights[fqn] for fqn in names)
    if apart <= target.rounding + reference.rounding + 2 * _of_gradients(target, reference):
        return []
    own = own_constants(target.each, reference.each) if target.knows_gradients else None
    if own is not None:
        found = _finding(context, names, own.headline, (own.headline, *own.evidence))
        return [replace(found, causes=own.causes)]
    evidence = tuple(
        _move_reason(name, move) for name, move in (("target", target), ("reference", reference))
    )
    return [_finding(context, names, _headline(target, reference, context), evidence)]


def _not_finite(context: Context, target: Move, reference: Move) -> list[Finding]:
    """One finding where weights of one run alone hold NaN or infinities after the first step: no length of a
    move says anything of them."""
    held = {
        side: [fqn for fqn, d in move.weights.items() if not np.isfinite(d).all()]
        for side, move in (("target", target), ("reference", reference))
    }
    if all(held.values()):
        return []
    ((side, names),) = ((side, names) for side, names in held.items() if names)
    move = target if side == "target" else reference
    headline = reason(Stages.MOVED_TO_NAN, side=side, num=len(names), next=context.steps[1][0])
    gradients = [move.gradients[fqn] for fqn in names if fqn in move.gradients]
    finite = bool(gradients) and all(np.isfinite(one).all() for one in gradients)
    evidence = (reason(Stages.FINITE_GRADIENTS, step=context.steps[0][0]),) if finite else ()
    found = _finding(context, names, headline, evidence)
    cause = (reason(Stages.DIVIDED_BY_ZERO),) if finite else ()
    return [replace(found, basis=Basis.RECORDED, causes=cause)]


# In one piece: what must hold of the two steps, then of each weight, then of all.
def frozen_that_move(context: Context) -> list[Finding]:
    """One finding where weights without a gradient, which no optimizer updates in either run, hold other bits
    after the first step in one run alone: the program wrote to them, as merging adapters does. Bits of what
    nothing updates do not round."""
    if len(context.steps) < 2 or any(b - a != 1 for a, b in zip(*context.steps[:2], strict=True)):
        return []
    before, after = context.pair(0), context.pair(1)
    if not all(book.parameters_with(*UPDATED) for book in before):
        return []
    moved: list[tuple[str, tuple[bool, ...]]] = []
    for fqn, other in context.matched.items():
        names = fqn, other
        if any(
            book.parameter(name, *slot) is not None
            for book, name in zip(before, names, strict=True)
            for slot in (UPDATED, ACCUMULATED, CLIPPED)
        ):
            continue
        held = [
            [book.digest(book.parameter(name, *WEIGHT)) for book, name in zip(books, names, strict=True)]
            for books in (before, after)
        ]
        if None in (*held[0], *held[1]) or held[0][0] != held[0][1]:
            continue
        moved.append((fqn, tuple(a != b for a, b in zip(*held, strict=True))))
    sides = {which for _, which in moved if any(which)}
    if len(sides) != 1 or (which := sides.pop()) == (True, True):
        return []
    found = [fqn for fqn, one in moved if one == which]
    facts = {"num": len(found), "step": before[0].step, "side": "target" if which[0] else "reference"}
    headline = reason(Stages.FROZEN_MOVED, **facts)
    evidence = reason(Stages.FROZEN_NAMED, parameters=found[:_SHOWN], total=len(moved), **facts)
    return [replace(_finding(context, found, headline, (evidence,)), basis=Basis.RECORDED, causes=())]


_SHOWN = 4
"""weights that a reason names"""


def _of_gradients(target: Move, reference: Move) -> float:
    """How far apart moves may be that are made of these gradients, as a length; 0 where they have the same
    bits or are not known."""
    square = 0.0
    for fqn, gradient in target.gradients.items():
        other = reference.gradients.get(fqn)
        if other is None or np.array_equal(gradient, other):
            continue
        moved = np.maximum(np.abs(target.weights[fqn]), np.abs(reference.weights[fqn]))
        least = np.minimum(np.abs(gradient), np.abs(other))
        changed = np.abs(gradient - other)
        share = np.divide(changed, least, out=np.full_like(changed, 2.0), where=changed < 2.0 * least)
        square += float(np.sum(np.square(moved * np.where(changed == 0, 0.0, share))))
    return math.sqrt(square)


def _is_of_one_direction(target: Move, reference: Move) -> bool:
    """Whether one move is a multiple of the other, but for roundings of both."""
    own, other = (list(one.weights.values()) for one in (target, reference))
    return _multiple(own, other, target.rounding + reference.rounding) is not None


def _headline(target: Move, reference: Move, context: Context) -> Reason:
    """By the factors of the gradient where both moves are along it, else by lengths; where these are alike
    and it is the directions that differ, by neither."""
    factors = target.along_gradient(), reference.along_gradient()
    if factors[0] is not None and factors[1] is not None:
        sides = {"target": factors[0], "reference": factors[1]}
        return reason(Stages.MOVED_TIMES, **sides, **_steps(context))
    sides = {"target": target.length, "reference": reference.length}
    alike = abs(target.length - reference.length) <= UPDATE_APART * reference.length
    if alike and not _is_of_one_direction(target, reference):
        return reason(Stages.MOVED_ELSEWHERE, **_steps(context))
    return reason(Stages.MOVED_BETWEEN, **sides, **_steps(context))


def moves_of(context: Context) -> tuple[Move, Move] | None:
    """How target and reference move their weights without an optimizer from the first captured step to the
    second; None where one steps, the weights do not start alike, or they stay."""
    if len(context.steps) < 2 or any(b.parameters_with(*UPDATED) for b in context.pair(0)):
        return None
    first, second = context.pair(0), context.pair(1)
    shapes = (first[0].shape(first[0].parameter(fqn, *WEIGHT)) or () for fqn in context.matched)
    if sum(map(math.prod, shapes)) > _MOST_NUMBERS:
        return None
    names = [
        (fqn, other)
        for fqn, other in context.matched.items()
        if all(_are_known(books, (fqn, other)) for books in (first, second))
    ]
    starts = [[b.digest(b.parameter(n, *WEIGHT)) for b, n in zip(first, pair, strict=True)] for pair in names]
    if not names or any(one is None or one != two for one, two in starts):
        return None
    moves = tuple(
        _move(before, after, [(pair[0], pair[side]) for pair in names])
        for side, (before, after) in enumerate(zip(first, second, strict=True))
    )
    return (moves[0], moves[1]) if any(one.length for one in moves) else None


def _are_known(books: tuple[StepView, StepView], names: tuple[str, str]) -> bool:
    return all(b.value(b.parameter(name, *WEIGHT)) is not None for b, name in zip(books, names, strict=True))


def _move(before: StepView, after: StepView, names: Sequence[tuple[str, str]]) -> Move:
    weights, gradients, rounding, each, roundoffs = {}, {}, 0.0, {}, {}
    for fqn, own in names:
        there = after.parameter(own, *WEIGHT)
        w0, w1 = _value(before, before.parameter(own, *WEIGHT)), _value(after, there)
        assert w0 is not None
        assert w1 is not None
        weights[fqn] = w1 - w0
        roundoffs[fqn] = roundoff_of(after.dtype(there))
        rounding += float(UPDATE_ROUNDINGS * roundoff_of(after.dtype(there)) * np.linalg.norm(w1)) ** 2
        gradient = _value(before, before.parameter(own, *ACCUMULATED))
        if gradient is not None and gradient.shape == w1.shape and w1.size:
            gradients[fqn] = gradient
            roundings = UPDATE_ROUNDINGS * roundoff_of(after.dtype(there)) * float(np.sqrt(np.mean(w1**2)))
            each[fqn] = OwnMove(weights[fqn].ravel(), gradient.ravel(), w0.ravel(), roundings)
    length = math.sqrt(rounding)
    return Move(weights=weights, gradients=gradients, rounding=length, roundoffs=roundoffs, each=each)


def _value(book: StepView, record: int | None) -> Floats | None:
    value = book.value(record)
    return None if value is None else value.astype(np.float64)


def _length(tensors: Iterable[Floats]) -> float:
    return math.sqrt(sum(float(np.vdot(one, one)) for one in tensors))


def _multiple(tensors: Sequence[Floats], of: Sequence[Floats], rounding: float) -> float | None:
    """a of t = a x, over all tensors together; None where it leaves over more than rounding, or t is no
    more."""
    square = sum(float(np.vdot(x, x)) for x in of)
    if not square or _length(tensors) <= rounding:
        return None
    factor = sum(float(np.vdot(t, x)) for t, x in zip(tensors, of, strict=True)) / square
    rest = _length(t - factor * x for t, x in zip(tensors, of, strict=True))
    return factor if rest <= rounding else None


def _move_reason(side: str, move: Move) -> Reason:
    factor = move.along_gradient()
    if not move.length:
        return reason(Stages.MOVED_NOT, side=side)
    if factor is None:
        along_none = move.knows_gradients and move.length > move.rounding
        return reason(Stages.MOVED_OTHERWISE, side=side, length=move.length, along_none=along_none)
    norm = _length(move.gradients.values())
    return reason(Stages.MOVED_ALONG, side=side, factor=factor, length=move.length, norm=norm)


def _kept(context: Context, move: Move) -> list[Finding]:
    """What the update of one run alone takes back: after it, the runs' weights differ by a multiple of what
    both moved before."""
    target, reference = context.pair(1)
    apart, rounding = {}, 0.0
    for fqn in move.weights:
        at, there = target.parameter(fqn, *UPDATED), reference.parameter(context.matched[fqn], *UPDATED)
        one, other = _value(target, at), _value(reference, there)
        if one is None or other is None:
            return []
        apart[fqn] = one - other
        rounding += float(UPDATE_ROUNDINGS * roundoff_of(target.dtype(at)) * np.linalg.norm(one)) ** 2
    factor = _multiple(list(apart.values()), list(move.weights.values()), math.sqrt(rounding))
    if factor is None:
        return []
    evidence = (reason(Stages.MOVED_BOTH, length=move.length), reason(Stages.MOVE_LEFT, factor=factor))
    headline = evidence[1]
    if is_taken_back_by_one(factor, _left_of(context, move, of_target=factor < 0)):
        headline = reason(Stages.MOVE_KEPT, factor=factor, **_steps(context))
    return [_finding(context, list(apart), headline, evidence)]


def is_taken_back_by_one(apart: float, left: float) -> bool:
    """Whether one run alone takes a move back: the runs are one whole move ``apart`` after it, and of the one
    that lies behind, less than half of it is ``left``."""
    return abs(left) < MOVE_TAKEN_BACK and abs(abs(apart) - 1) < MOVE_WHOLE


def _left_of(context: Context, move: Move, *, of_target: bool) -> float:
    """How much of the move is in what became of one run's weights after its update, beside a multiple of the
    gradient that this was made of."""
    side = 0 if of_target else 1
    first, last = context.pair(0)[side], context.pair(1)[side]
    changes, gradients = [], []
    for fqn in move.weights:
        own = context.matched[fqn] if side else fqn
        start, end = _value(first, first.parameter(own, *WEIGHT)), _value(last, last.parameter(own, *UPDATED))
        assert start is not None
        assert end is not None
        gradient = _value(last, last.parameter(own, *CLIPPED))
        changes.append((end - start).ravel())
        gradients.append(np.zeros(start.size) if gradient is None else gradient.ravel())
    columns = np.stack(
        [np.concatenate([d.ravel() for d in move.weights.values()]), np.concatenate(gradients)]
    )
    change = np.concatenate(changes)
    shares, _, rank, _ = np.linalg.lstsq(columns.T, change, rcond=None)
    return float(shares[0]) if rank > 1 else float(columns[0] @ change) / move.length**2


def _steps(context: Context) -> dict[str, int]:
    return {"step": context.steps[0][0], "next": context.steps[1][0]}


def _finding(context: Context, names: list[str], headline: Reason, evidence: tuple[Reason, ...]) -> Finding:
    book = context.pair(1)[0]
    shapes = {fqn: list(book.shape(book.parameter(fqn, *WEIGHT)) or ()) for fqn in context.matched}
    return Finding(
        stage=Stage.OPTIMIZER,
        headline=headline,
        module=place_of(names, shapes),
        site=f"weights at the start of step {book.step} · {described(names, shapes)}",
        phase="param",
        step=book.step,
        rank=book.rank,
        basis=Basis.FITTED,
        evidence=evidence,
        causes=(reason(Stages.OWN_STEP),),
    )
