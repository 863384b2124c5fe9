"""Updated weights on their way back from the optimizer to the model: into the working copy, to other ranks.

Where both optimizers did the same in a step and the weights of the next one differ, what the optimizer made
did not arrive: the model computes with values of before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trueup.diagnosing.stages.context import Context, is_beyond, is_compared
from trueup.diagnosing.stages.naming import described, kind_named, place_of
from trueup.diagnosing.thresholds import STALE_CHANGE, STALE_FEWEST, STALE_SHARE
from trueup.merging.trace import MergedTrace
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView
from trueup.store.view import UPDATED, WEIGHT
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import StagesCode as Stages
from trueup.types.finding import Basis, EvidenceRank, Finding, Stage
from trueup.types.reason import reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """Elements of one weight, on one rank, that are still those of the step before."""

    fqn: str
    rank: int
    elements: Bools
    """flat"""
    is_clear: bool
    """some of them moved by more than a step of the dtype in the reference"""


def stale_findings(context: Context) -> list[Finding]:
    """One finding where weights of the second captured step are the first's, in the target alone."""
    if len(context.steps) < 2 or _starts_later(context):
        return []
    found = [stale for rank in context.ranks for stale in _stale(context, rank)]
    if not found or not (any(one.is_clear for one in found) or _are_all(found, context)):
        return []  # smaller updates of all weights, which half a step of some hides
    names = list(dict.fromkeys(one.fqn for one in found))
    book = context.pair(1, found[0].rank)[0]
    shapes = {f: book.shape(book.parameter(f, *WEIGHT)) or () for f in book.parameters}
    axis, ranks = _whose(found, context)
    share = float(np.mean(np.concatenate([one.elements for one in found])))
    kept = reason(Stages.STALE_ELEMENTS, parameter=names[0], share=share, step=context.steps[0][0])
    causes = (reason(Stages.COPY_BEFORE_UPDATE), reason(Stages.PARTS_NOT_GATHERED))
    kind = kind_named("stale_value", EvidenceRank.EVERY_ELEMENT, kept, causes=causes)
    updates = context.of_phases("optimizer").filter(is_compared())
    updates_agree = updates.height > 0 and updates.filter(is_beyond()).is_empty()
    owners = [str(rank) for rank in ranks]
    num_ranks = len({one.rank for one in found})
    return [
        Finding(
            stage=Stage.OPTIMIZER,
            headline=reason(Stages.NOT_COPIED_BACK, parameters=described(names, shapes), ranks=owners),
            module=place_of(names, shapes),
            site=f"{names[0]} · value",
            phase="param",
            step=context.steps[1][0],
            rank=found[0].rank,
            axis=axis,
            ranks=ranks,
            kinds=(kind,),
            basis=Basis.RECORDED,
            evidence=(kept, reason(Stages.NUM_WEIGHTS, num=len(names), ranks=num_ranks)),
            counter_evidence=(reason(Stages.SAME_UPDATES),) if updates_agree else (),
            causes=kind.causes,
            next_note=reason(Stages.COPY_UPDATED),
        )
    ]


def _starts_later(context: Context) -> bool:
    """Whether no optimizer steps before the second captured step: what a program does to weights before that
    is no update that could be lost."""
    sides = [[bool(book.parameters_with(*UPDATED)) for book in context.pair(at)] for at in (0, 1)]
    return not any(sides[0]) and any(sides[1])


def _stale(context: Context, rank: int) -> Iterator[Stale]:
    before, after = context.pair(0, rank)[0], context.pair(1, rank)
    for fqn in after[0].parameters:
        records = [(book, book.parameter(name, *WEIGHT)) for book, name in _sides(after, fqn, context)]
        if None in (record for _, record in records) or _same_digest(records):
            continue
        target, reference = (book.value(record) for book, record in records)
        old = before.value(before.parameter(fqn, *WEIGHT))
        if (
            target is None
            or reference is None
            or old is None
            or not target.shape == reference.shape == old.shape
        ):
            continue
        kept = stale_elements(target, reference, old, _roundoff(records))
        if kept is not None:
            moved, step = np.abs(reference - old), _step(reference, old, _roundoff(records))
            is_clear = bool((moved > step).reshape(-1)[kept].any())
            yield Stale(fqn=fqn, rank=rank, elements=kept, is_clear=is_clear)


def _are_all(found: list[Stale], context: Context) -> bool:
    """Whether no weight but these begins the second step otherwise than in the reference."""
    known = {(one.rank, one.fqn) for one in found}
    for rank in context.ranks:
        after = context.pair(1, rank)
        for fqn in after[0].parameters:
            records = [(book, book.parameter(name, *WEIGHT)) for book, name in _sides(after, fqn, context)]
            there = None not in (record for _, record in records)
            if there and (rank, fqn) not in known and not _same_digest(records):
                return False
    return True


def _step(reference: Floats, old: Floats, roundoff: float) -> Floats:
    """From one number to the next of the dtype, at most."""
    return np.asarray(2 * roundoff * np.maximum(np.abs(reference), np.abs(old)))


def _sides(books: tuple[StepView, StepView], fqn: str, context: Context) -> tuple[tuple[StepView, str], ...]:
    return (books[0], fqn), (books[1], context.matched.get(fqn, fqn))


def _same_digest(records: list[tuple[StepView, int | None]]) -> bool:
    digests = {book.digest(record) for book, record in records}
    return len(digests) == 1 and None not in digests


def _roundoff(records: list[tuple[StepView, int | None]]) -> float:
    """Of the coarser dtype of the two."""
    dtypes = [book.dtype(record) for book, record in records if record is not None]
    return max((DTYPES[one].eps for one in dtypes if one in DTYPES), default=0.0)


def stale_elements(target: Floats, reference: Floats, old: Floats, roundoff: float = 0.0) -> Bools | None:
    """Elements that are still the old ones and not the reference's, flat; None where those do not make up
    most of what differs by more than a thousandth of what the step changed, or are so few that updates of
    exactly zero explain them: the sign of a gradient that is all rounding decides those.

    An update that moved an element of the reference to the next number of its dtype is one that another
    gradient may leave below half a step: where the target moved others, only larger ones count.
    """
    kept = ((target == old) & (target != reference)).reshape(-1)
    if not (target == old).all():
        kept &= (np.abs(reference - old) > _step(reference, old, roundoff)).reshape(-1)
    changed = float(np.abs(reference - old).max())
    beyond = np.abs(target - reference) > STALE_CHANGE * changed
    enough = kept.all() or kept.sum() >= STALE_FEWEST
    if not (kept.any() and enough and kept.sum() >= STALE_SHARE * beyond.sum()):
        return None
    return np.asarray(kept) if _are_a_part(kept, reference != old) else None


def _are_a_part(kept: Bools, changed: Bools) -> bool:
    """Whether elements make up a part that may be handed on by itself: most of what the reference changed
    between the first and the last of them, or, for most of them, in their row or column. Elements here and
    there are those whose gradients cancel in one run."""
    num, flat = kept.sum(), np.flatnonzero(kept)
    if 2 * num > changed.reshape(-1)[flat[0] : flat[-1] + 1].sum():
        return True
    for dim in range(changed.ndim if changed.ndim > 1 else 0):
        rest = tuple(other for other in range(changed.ndim) if other != dim)
        held, moved = kept.reshape(changed.shape).sum(axis=rest), changed.sum(axis=rest)
        if 2 * held[2 * held > moved].sum() > num:
            return True
    return False


def _whose(found: list[Stale], context: Context) -> tuple[str | None, tuple[int, ...]]:
    """The ranks whose parts are stale even with themselves; else the axis along which parts are not
    passed on."""
    step = context.steps[1][0]
    for one in found:
        copies = context.copies_apart(step, context.pair(1, one.rank)[0].parameter(one.fqn, *WEIGHT))
        if copies is not None:
            return copies[0], ()
    owners: dict[int, set[bool]] = {}
    axes: set[str] = set()
    for rank in range(context.layout.size):
        for name, piece in _pieces(context, rank):
            start, stop = piece["flat"]
            for one in found:
                if one.fqn == name:
                    axes |= set(piece["axes"])
                    owners.setdefault(rank, set()).add(bool(one.elements[start:stop].any()))
                    if one.rank == rank and not one.elements[start:stop].any():
                        owners.setdefault(rank, set()).add(False)
    stale_ranks = tuple(rank for rank, seen in owners.items() if seen == {True})
    if stale_ranks and len(stale_ranks) < len(owners):
        return None, stale_ranks
    return (axes.pop() if len(axes) == 1 else None), ()


def _pieces(context: Context, rank: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    target = context.target
    facts = (target.parts if isinstance(target, MergedTrace) else target).rank_facts(rank)
    for optimizer in facts.get("optimizers") or []:
        for piece in (optimizer.get("pieces") or {}).values():
            yield str(piece["name"]), piece
