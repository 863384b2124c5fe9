"""Master weights that both programs keep outside the framework's optimizers, as their own updates left them.

No record of the step shows them but by the weights that are rounded from them: a coarse weight hides what an
update does to less than half its step, and what the last captured update did shows nowhere. Judged from the
first step on, while the gradients that backward left have the same bits in both runs: then the updates are
sums and products of the same numbers. With a the master, u the roundoff of its dtype, in each tensor

    ||a'_t - a'_r|| <= ||a_t - a_r|| + 4 u ||a'_r|| + s ||a'_r - a_r||,

a' = fl(a + update) and a decay rounding three times, s the share of an update that its own arithmetic may
round away. Where gradients have other bits nothing is said: an update by their sign or by their size over its
own average makes any difference of them as large as itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from trueup.comparing.average_fit import rounding_of
from trueup.comparing.thresholds import MASTER_FIT_REST, MASTER_UPDATE
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView, TraceSource, step_view
from trueup.store.view import WEIGHT
from trueup.types.arrays import Floats
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.reason import Number, Place, Reason, reason

_OWN = "weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterGap:
    """The first step after which master weights differ by more than their updates' rounding."""

    step: int
    names: tuple[str, ...]
    """of the tensors that do, the largest difference against its tolerance first"""
    headline: Reason
    evidence: tuple[Reason, ...]
    is_explained: bool
    """one formula tells what the updates differ by"""
    moves: Mapping[str, MasterMove]
    """of every master that both runs hold, in that step"""


class MasterMove(NamedTuple):
    """One master of both runs, flat, which starts alike in them."""

    before: Floats
    target: Floats
    """after the update"""
    reference: Floats
    rounding: float
    """of one number after the update, as the root of its mean square"""


class _Side:
    """The master weights of one run, of the first rank."""

    def __init__(self, source: TraceSource) -> None:
        self.source = source
        self.rank = min(source.steps().values(), default=[0])[0]
        known = source.rank_facts(self.rank).get("masters") or []
        self.slot = known[0]["slot"] if len(known) == 1 else None
        self.held = known[0]["held"] if len(known) == 1 else None


@dataclass(frozen=True, kw_only=True)
class _Step:
    side: _Side
    step: int

    @cached_property
    def view(self) -> StepView:
        """The step's own records: it begins with the weights before the update."""
        return step_view(self.side.source, self.step, self.side.rank)

    @cached_property
    def book(self) -> StepView | None:
        tables = self.view.tables.averages
        return None if tables is None else StepView(self.side.source, tables)

    @cached_property
    def records(self) -> dict[str, dict[str, int]]:
        """fqn -> slot -> record, of the last time that each was recorded."""
        found: dict[str, dict[str, int]] = {}
        for record, call in enumerate(self.book.record_call if self.book else ()):
            assert self.book is not None
            found.setdefault(self.book.name[call], {})[self.book.slot[record]] = record
        return {fqn: of for fqn, of in found.items() if self.side.slot in of and _OWN in of}

    def numbers(self, fqn: str) -> Floats | None:
        """The master after the update: values, else the sketch."""
        assert self.book is not None
        record = self.records[fqn][str(self.side.slot)]
        value = self.book.value(record)
        return self.book.sketch(record) if value is None else value.reshape(-1)

    def values(self, fqn: str) -> Floats | None:
        """Stored values alone."""
        assert self.book is not None
        return self.book.value(self.records[fqn][str(self.side.slot)])

    def rounding(self, fqn: str) -> float:
        """Of one update, as a length."""
        assert self.book is not None
        record = self.records[fqn][str(self.side.slot)]
        dtype = self.book.dtype(record)
        return rounding_of(self.book.norm(record) or 0.0, DTYPES[dtype].eps if dtype in DTYPES else 0.0)

    def dtype_of_weight(self, fqn: str) -> str | None:
        assert self.book is not None
        return self.book.dtype(self.records[fqn][_OWN])

    def initial(self, fqn: str) -> Floats | None:
        """The weight that the step begins with."""
        record = self.view.parameter(fqn, *WEIGHT)
        if record is None:
            return None
        value = self.view.value(record)
        return self.view.sketch(record) if value is None else value.reshape(-1)

    @cached_property
    def gradients(self) -> list[int | None]:
        """Digests of the gradients that backward left, in the order in which they came."""
        return [self.view.digest(row) for row, phase in enumerate(self.view.phase) if phase == "param_grad"]


def master_gap(target: TraceSource, reference: TraceSource, steps: Mapping[int, int]) -> MasterGap | None:
    """Of the first rank; ``steps``: target step -> reference step. None where nothing differs by more than
    it may, and where either run keeps no master weights, or several."""
    sides = _Side(target), _Side(reference)
    if None in (sides[0].slot, sides[1].slot):
        return None
    before: tuple[dict[str, Floats], ...] | None = None
    for number, (step, other) in enumerate(sorted(steps.items())):
        if (step, other) != (number, number):  # of a step between, which was not captured, nothing is known
            return None
        if step not in target.steps() or other not in reference.steps():
            return None
        one, two = _Step(side=sides[0], step=step), _Step(side=sides[1], step=other)
        shared = [fqn for fqn in one.records if fqn in two.records]
        if not shared or not one.gradients or None in one.gradients or one.gradients != two.gradients:
            return None
        if before is None:
            before = _start(one, two, shared)
        if before is None:
            return None
        after = _after(one, shared), _after(two, shared)
        gap = _beyond(one, two, before, after)
        if gap is not None:
            return gap
        before = after
    return None


def _start(one: _Step, two: _Step, shared: Sequence[str]) -> tuple[dict[str, Floats], ...] | None:
    """What the masters were made of in the first step; None where capture began later, when they are no
    longer the weights."""
    if one.side.held != one.step or two.side.held != two.step or one.step != 0 or two.step != 0:
        return None
    found = []
    for step in (one, two):
        known = {fqn: step.initial(fqn) for fqn in shared}
        found.append({fqn: value for fqn, value in known.items() if value is not None})
    return tuple(found)


def _after(step: _Step, shared: Sequence[str]) -> dict[str, Floats]:
    known = {fqn: step.numbers(fqn) for fqn in shared}
    return {fqn: value for fqn, value in known.items() if value is not None}


def _beyond(
    one: _Step, two: _Step, before: tuple[dict[str, Floats], ...], after: tuple[dict[str, Floats], ...]
) -> MasterGap | None:
    found: list[tuple[float, str, float, float]] = []
    for fqn in after[0]:
        parts = [held.get(fqn) for held in (*before, *after)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or len({part.shape for part in known}) > 1:
            continue
        start, other_start, end, other_end = known
        update = float(np.linalg.norm(other_end - other_start))
        rounding = max(one.rounding(fqn), two.rounding(fqn))
        allowed = allowed_gap(float(np.linalg.norm(start - other_start)), rounding, update)
        difference = float(np.linalg.norm(end - other_end))
        if difference > allowed and update > 0:
            found.append((difference / allowed, fqn, difference / update, allowed / update))
    if not found:
        return None
    found.sort(key=lambda entry: -entry[0])
    names = tuple(fqn for _, fqn, _, _ in found)
    difference_found = reason(
        EvidenceCode.MASTERS_APART,
        num=len(names),
        step=one.step,
        name=names[0],
        share=found[0][2],
        tolerance=found[0][3],
    )
    cause = _rounded_in_one(one, two, before, after) or _formula(one, names, before, after)
    headline = reason(VerdictCode.MASTERS_DIFFER, num=len(names), step=one.step, name=names[0])
    return MasterGap(
        step=one.step,
        names=names,
        headline=cause or headline,
        evidence=(difference_found, reason(EvidenceCode.GRADIENTS_THE_SAME, step=one.step)),
        is_explained=cause is not None,
        moves=_moves(one, before, after),
    )


def _moves(
    one: _Step, before: tuple[dict[str, Floats], ...], after: tuple[dict[str, Floats], ...]
) -> dict[str, MasterMove]:
    """Of masters that start with the same numbers."""
    shared = (fqn for fqn in after[0] if all(fqn in held for held in (*before, after[1])))
    return {
        fqn: MasterMove(
            before[0][fqn], after[0][fqn], after[1][fqn], one.rounding(fqn) / math.sqrt(after[0][fqn].size)
        )
        for fqn in shared
        if np.array_equal(before[0][fqn], before[1][fqn]) and after[0][fqn].size
    }


def allowed_gap(before: float, rounding: float, update: float) -> float:
    """What a master may differ by after an update of that length, all as lengths."""
    return before + rounding + MASTER_UPDATE * update


def _rounded_in_one(
    one: _Step, two: _Step, before: tuple[dict[str, Floats], ...], after: tuple[dict[str, Floats], ...]
) -> Reason | None:
    """Whether one run's masters hold no more than the dtype of the weights can, after an update that moved
    them, and needs more in the other run. Those that rest, at a rate of 0, hold what they were made of."""
    dtypes = {one.dtype_of_weight(fqn) for fqn in after[0]} | {two.dtype_of_weight(fqn) for fqn in after[1]}
    dtype = next(iter(dtypes)) if len(dtypes) == 1 else None
    if dtype != "bfloat16":
        return None
    sides = [_is_coarse([step.values(fqn) for fqn in step.records]) for step in (one, two)]
    if None in sides or sides[0] == sides[1]:
        return None
    at = 0 if sides[0] else 1
    shared = before[at].keys() & after[at].keys()
    if all(np.array_equal(after[at][fqn], before[at][fqn]) for fqn in shared):
        return None
    return reason(VerdictCode.MASTERS_ROUNDED, side=("target", "reference")[at], dtype=dtype, step=one.step)


def _is_coarse(values: Sequence[Floats | None]) -> bool | None:
    """Whether all numbers are bfloat16's: the lower half of their float32 is zero. None where some are not
    stored."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return all(not (value.astype(np.float32).view(np.uint32) & 0xFFFF).any() for value in known)


def _formula(
    one: _Step,
    names: Sequence[str],
    before: tuple[dict[str, Floats], ...],
    after: tuple[dict[str, Floats], ...],
) -> Reason | None:
    """What the updates of all that differ have apart: a factor of the update, or a share of the weights."""
    target_updates = np.concatenate([after[0][fqn] - before[0][fqn] for fqn in names])
    reference_updates = np.concatenate([after[1][fqn] - before[1][fqn] for fqn in names])
    weights = np.concatenate([before[1][fqn] for fqn in names])
    facts: dict[str, Number | Place] = {"num": len(names), "step": one.step, "name": names[0]}
    share = multiple_of(target_updates - reference_updates, weights)
    if share is not None:
        return reason(VerdictCode.MASTERS_DECAY, share=-share, **facts)
    factor = multiple_of(target_updates - reference_updates, reference_updates)
    return None if factor is None else reason(VerdictCode.MASTERS_SCALED, factor=1 + factor, **facts)


def multiple_of(difference: Floats, of: Floats) -> float | None:
    """c of difference = c of, where that leaves next to nothing."""
    square = float(of @ of)
    if not square:
        return None
    multiple = float(difference @ of) / square
    rest = float(np.linalg.norm(difference - multiple * of))
    return multiple if rest <= MASTER_FIT_REST * float(np.linalg.norm(difference)) else None
