"""Pairs everything of one step on one rank, and says why what is left has no partner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueup.matching.calls import PASSES, CallPairs, match_calls
from trueup.matching.codes import Codes
from trueup.matching.records import RecordPairs, match_records
from trueup.matching.tree import Side, Words, build
from trueup.store import StepTables

__all__ = ["PASSES", "StepMatch", "match_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMatch:
    """Both sides as arrays, the paired calls and the paired records."""

    target: Side
    reference: Side
    words: Words
    calls: CallPairs
    records: RecordPairs

    def why_only_target(self) -> list[str]:
        """One reason for each of ``records.only_target``."""
        return _Reasons(self, self.target, self.reference, "reference", of_target=True).of(
            self.records.only_target
        )

    def why_only_reference(self) -> list[str]:
        """One reason for each of ``records.only_reference``."""
        return _Reasons(self, self.reference, self.target, "target", of_target=False).of(
            self.records.only_reference
        )


def match_step(target: StepTables, reference: StepTables) -> StepMatch:
    """Pair calls, then the records within them.

    Example:
        >>> match = match_step(a.read(0, 0), b.read(0, 0))          # doctest: +SKIP
        >>> len(match.records.target), len(match.records.only_target)  # doctest: +SKIP
        (956, 0)
    """
    left, right, words = build(target, reference)
    calls = match_calls(left, right, words)
    return StepMatch(
        target=left,
        reference=right,
        words=words,
        calls=calls,
        records=match_records(left, right, words, calls),
    )


class _Reasons:
    """Words for what one side alone has; each distinct situation is put into words once."""

    def __init__(self, match: StepMatch, here: Side, there: Side, other: str, *, of_target: bool) -> None:
        self._words, self._here, self._there, self._other = match.words, here, there, other
        self._partner = match.calls.reference_of if of_target else match.calls.target_of
        self._facing = match.calls.facing_target if of_target else match.calls.facing_reference
        self._kinds = set(np.unique(there.kind).tolist())
        self._phases = set(np.unique(there.record_phase).tolist())
        self._microbatches = int(there.microbatch.max(initial=-1)) + 1
        self._of_call: dict[int, str] = {}

    def of(self, rows: Codes) -> list[str]:
        """One reason a record."""
        calls = self._here.record_call[rows].tolist()
        phases = self._here.record_phase[rows].tolist()
        return [
            self._of_record(c, p) if self._partner[c] >= 0 else self._call(c)
            for c, p in zip(calls, phases, strict=True)
        ]

    def _of_record(self, call: int, phase: int) -> str:
        if phase not in self._phases:
            return f"the {self._other} holds no {self._words.phase[phase]} records: captured on one side only"
        return f"the {self._other} has no such tensor at this call"

    def _call(self, call: int) -> str:
        if call not in self._of_call:
            self._of_call[call] = self._describe(call)
        return self._of_call[call]

    def _describe(self, call: int) -> str:
        here, words = self._here, self._words
        if here.kind[call] not in self._kinds:
            return (
                f"the {self._other} holds no {words.kind[here.kind[call]]} calls: captured on one side only"
            )
        if here.microbatch[call] >= self._microbatches:
            return f"the {self._other} has only {self._microbatches} microbatches in this step"
        if here.wrapper[call]:
            return f"a wrapper; the {self._other} calls what is inside directly"
        parent = int(here.parent[call])
        if parent >= 0 and self._partner[parent] < 0:
            return f"no counterpart: its module {_shown(words.name[here.name[parent]])} has none"
        name = words.name[here.name[call]]
        if words.kind[here.kind[call]] == "parameter":
            return f"no counterpart: the {self._other} has no parameter {name}"
        facing = [words.name[self._there.name[c]] for c in self._facing.get(call, [])]
        if facing:
            return f"no counterpart: the {self._other} calls {', '.join(dict.fromkeys(facing))} here"
        return f"no counterpart: the {self._other} does not call {_shown(name)} here"


def _shown(name: str) -> str:
    return name or "(root)"
