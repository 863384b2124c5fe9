"""Backward passes in another order than the other run's, as schedules of pipelines have them.

Losses, gradients of weights and what is exchanged for a pass are paired with those of the pass through the
paired forward. Gradients accumulated after a pass are sums of other parts in either run, but for the last.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from trueup.matching.calls import CallPairs
from trueup.matching.records import RecordPairs
from trueup.matching.tree import TreeSide, Words
from trueup.store import StepTables
from trueup.store.passes import BackwardPass, backward_passes, runs_ahead

_Couple = tuple[BackwardPass, BackwardPass]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedPasses:
    """Target's and reference's pass through the same forwards, in the target's order; the last ones in time
    need not be a couple."""

    couples: tuple[_Couple, ...]
    last: tuple[int, int]
    """where the last pass begins on either side"""

    @classmethod
    def of(cls, tables: tuple[StepTables, StepTables], calls: CallPairs) -> TurnedPasses | None:
        """None where both run in one order, or go through other forwards."""
        if not any(map(runs_ahead, tables)):
            return None
        target, reference = (backward_passes(side) for side in tables)
        if not target or len(target) != len(reference):
            return None
        by_calls = {one.through: one for one in reference}
        pairs = [(one, by_calls.get(_partners(one, calls))) for one in target]
        couples = tuple((one, other) for one, other in pairs if other is not None)
        begins = [other.begin for _, other in couples]
        if len(couples) < len(target) or begins == sorted(begins):
            return None
        return cls(couples=couples, last=(target[-1].begin, reference[-1].begin))

    def with_calls(self, calls: CallPairs, sides: tuple[TreeSide, TreeSide]) -> CallPairs:
        """The pairs of calls, with losses and exchanges of coupled passes paired."""
        for one, other in self.couples:
            _pair(calls, one.losses, other.losses)
            for name in {int(sides[0].plain[call]) for call in one.exchanged}:
                _pair(
                    calls,
                    tuple(call for call in one.exchanged if sides[0].plain[call] == name),
                    tuple(call for call in other.exchanged if sides[1].plain[call] == name),
                )
        return calls

    def with_records(
        self, records: RecordPairs, calls: CallPairs, sides: tuple[TreeSide, TreeSide], words: Words
    ) -> tuple[RecordPairs, frozenset[int], frozenset[int]]:
        """The pairs of records, and those of either side that are sums of other parts and have none."""
        target, reference = sides
        phase, local, summed = (
            codes.index(word) if word in codes else -2
            for codes, word in (
                (words.phase, "param_grad"),
                (words.slot, "local"),
                (words.slot, "accumulated"),
            )
        )
        is_gradient = target.record_phase[records.target] == phase
        slot = target.record_slot[records.target]
        partners = records.reference.copy()
        turned = self._locals(calls, sides, phase, local)
        for at in np.flatnonzero(is_gradient & (slot == local)).tolist():
            partners[at] = turned.get(int(records.target[at]), partners[at])
        parts = is_gradient & (slot == summed)
        parts &= (records.target < self.last[0]) | (records.reference < self.last[1])
        dropped = frozenset(records.target[parts].tolist()), frozenset(records.reference[parts].tolist())
        kept = ~parts
        found = replace(
            records,
            target=records.target[kept],
            reference=partners[kept],
            other_slot=records.other_slot[kept],
            only_target=np.setdiff1d(np.arange(len(target.record_call)), records.target[kept]),
            only_reference=np.setdiff1d(np.arange(len(reference.record_call)), partners[kept]),
        )
        return found, *dropped

    def _locals(
        self, calls: CallPairs, sides: tuple[TreeSide, TreeSide], phase: int, local: int
    ) -> dict[int, int]:
        """Record -> record of the gradients of weights that each pass left."""
        found: dict[int, int] = {}
        for one, other in self.couples:
            here, there = (
                _by_call(side, one_pass, phase, local)
                for side, one_pass in zip(sides, (one, other), strict=True)
            )
            for call, rows in here.items():
                others = there.get(int(calls.reference_of[call]), [])
                if len(rows) == len(others):
                    found.update(zip(rows, others, strict=True))
        return found


def _partners(one: BackwardPass, calls: CallPairs) -> frozenset[int]:
    return frozenset(int(calls.reference_of[call]) for call in one.through)


def _pair(calls: CallPairs, target: tuple[int, ...], reference: tuple[int, ...]) -> None:
    """Pair as many calls in their order; a call that was paired with another one gives up its partner."""
    if len(target) != len(reference):
        return
    for t, r in zip(target, reference, strict=True):
        if calls.reference_of[t] < 0 or calls.target_of[r] < 0:
            continue
        old_r, old_t = int(calls.reference_of[t]), int(calls.target_of[r])
        calls.reference_of[t], calls.target_of[r] = r, t
        calls.reference_of[old_t], calls.target_of[old_r] = old_r, old_t


def _by_call(side: TreeSide, one: BackwardPass, phase: int, slot: int) -> dict[int, list[int]]:
    rows = np.arange(one.begin, one.end)
    chosen = rows[(side.record_phase[rows] == phase) & (side.record_slot[rows] == slot)]
    found: dict[int, list[int]] = defaultdict(list)
    for row in chosen.tolist():
        found[int(side.record_call[row])].append(row)
    return found
