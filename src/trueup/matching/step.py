"""Pairs everything of one step on one rank, and says why what is left has no partner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from trueup.matching.calls import PASS_CODE, PASSES, CallPairs, match_calls
from trueup.matching.codes import Codes
from trueup.matching.contents import pair_same_contents
from trueup.matching.names import like
from trueup.matching.operands import turn_operands
from trueup.matching.records import RecordPairs, match_records
from trueup.matching.thresholds import KNOWN_BY_NAME, NAMES_FEWEST, SAME_CLASSES
from trueup.matching.tree import TreeSide, Words, build
from trueup.matching.turned_passes import TurnedPasses
from trueup.store import StepTables
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason, reason

if TYPE_CHECKING:
    from trueup.matching.bridge import Bridge

__all__ = ["PASSES", "StepMatch", "match_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMatch:
    """Both sides as arrays, the paired calls and the paired records."""

    target: TreeSide
    reference: TreeSide
    words: Words
    calls: CallPairs
    records: RecordPairs
    bridge: Bridge | None = None
    """what pairs the two as wholes, where they are two implementations"""
    why_target: Mapping[int, Reason] = field(default_factory=dict)
    """record -> why it has no partner, where that is known from how the pairs were made"""
    why_reference: Mapping[int, Reason] = field(default_factory=dict)

    def why_only_target(self) -> list[Reason]:
        """One reason for each of ``records.only_target``."""
        known = _Reasons(self, self.target, self.reference, "reference", of_target=True)
        return known.of(self.records.only_target, self.why_target)

    def why_only_reference(self) -> list[Reason]:
        """One reason for each of ``records.only_reference``."""
        known = _Reasons(self, self.reference, self.target, "target", of_target=False)
        return known.of(self.records.only_reference, self.why_reference)


def match_step(target: StepTables, reference: StepTables, bridge: Bridge | None = None) -> StepMatch:
    """Pair calls, then the records within them.

    Two implementations, whose names do not match, are paired through ``bridge``; where none is given, one is
    made from what the tables alone say of their weights.

    Example:
        >>> match = match_step(a.read(0, 0), b.read(0, 0))          # doctest: +SKIP
        >>> len(match.records.target), len(match.records.only_target)  # doctest: +SKIP
        (956, 0)
    """
    left, right, words = build(target, reference)
    if bridge is None and (
        are_foreign(left, right, words)
        or (not _hold_the_same_weights(left, right, words) and are_renumbered(target, reference))
    ):
        from trueup.matching.bridge import build_bridge  # only here: two runs of one program start without

        bridge = build_bridge(None, None, (target, reference))
    if bridge is not None:
        return _across(target, reference, (left, right, words), bridge)
    calls, sides = match_calls(left, right, words), (left, right)
    pair_same_contents((target, reference), sides, words, calls)
    turned = TurnedPasses.of((target, reference), calls)
    if turned is not None:
        calls = turned.with_calls(calls, sides)
    records = turn_operands(match_records(left, right, words, calls), (target, reference), sides, words)
    parts: tuple[frozenset[int], frozenset[int]] = frozenset(), frozenset()
    if turned is not None:
        records, *both = turned.with_records(records, calls, sides, words)
        parts = both[0], both[1]
    why = Reason(RecordCode.SUMMED_IN_ANOTHER_ORDER)
    return StepMatch(
        target=left,
        reference=right,
        words=words,
        calls=calls,
        records=records,
        why_target=dict.fromkeys(parts[0], why),
        why_reference=dict.fromkeys(parts[1], why),
    )


def _across(
    target: StepTables, reference: StepTables, built: tuple[TreeSide, TreeSide, Words], bridge: Bridge
) -> StepMatch:
    from trueup.matching.across.match import match_across

    left, right, words = built
    found = match_across((target, reference), left, right, words, bridge)
    paired = found.paired
    order = np.argsort(np.array(paired.target, np.int64), kind="stable")
    t, r = (np.array(rows, np.int64)[order] for rows in (paired.target, paired.reference))
    return StepMatch(
        target=left,
        reference=right,
        words=words,
        calls=found.calls,
        records=RecordPairs(
            target=t,
            reference=r,
            other_slot=left.record_slot[t] != right.record_slot[r],
            only_target=np.setdiff1d(np.arange(len(left.record_call)), t),
            only_reference=np.setdiff1d(np.arange(len(right.record_call)), r),
            pass_code=np.array([PASS_CODE[how] for how, _ in paired.how], np.int64)[order],
            confidence=np.array([sure for _, sure in paired.how], np.float32)[order],
            layouts=tuple(paired.layouts.get(at) for at in order.tolist()),
        ),
        bridge=bridge,
        why_target=paired.why_target,
        why_reference=paired.why_reference,
    )


class _Reasons:
    """Why one side has no counterpart; each distinct situation is described once."""

    def __init__(
        self, match: StepMatch, here: TreeSide, there: TreeSide, other: str, *, of_target: bool
    ) -> None:
        self._words, self._here, self._there, self._other = match.words, here, there, other
        self._match, self._of_target = match, of_target
        self._partner = match.calls.reference_of if of_target else match.calls.target_of
        self._facing = match.calls.facing_target if of_target else match.calls.facing_reference
        self._kinds = set(np.unique(there.kind).tolist())
        self._phases = set(np.unique(there.record_phase).tolist())
        self._microbatches = int(there.microbatch.max(initial=-1)) + 1
        self._of_call: dict[int, Reason] = {}
        self._of_phase: dict[int, Reason] = {}

    def of(self, rows: Codes, known: Mapping[int, Reason]) -> list[Reason]:
        """One reason a record; ``known`` ones as they are."""
        calls = self._here.record_call[rows].tolist()
        phases = self._here.record_phase[rows].tolist()
        return [
            known[row] if row in known else self._record(p) if self._partner[c] >= 0 else self._call(c)
            for row, c, p in zip(rows.tolist(), calls, phases, strict=True)
        ]

    def _record(self, phase: int) -> Reason:
        if phase not in self._of_phase:
            captured = phase in self._phases
            self._of_phase[phase] = (
                self._lacks(RecordCode.NO_SUCH_TENSOR)
                if captured
                else self._lacks(RecordCode.PHASE_NOT_CAPTURED, phase=self._words.phase[phase])
            )
        return self._of_phase[phase]

    def _call(self, call: int) -> Reason:
        if call not in self._of_call:
            self._of_call[call] = self._describe(call)
        return self._of_call[call]

    def _describe(self, call: int) -> Reason:
        here, words = self._here, self._words
        if here.kind[call] not in self._kinds:
            return self._lacks(RecordCode.KIND_NOT_CAPTURED, kind=words.kind[here.kind[call]])
        if here.microbatch[call] >= self._microbatches:
            return self._lacks(RecordCode.FEWER_MICROBATCHES, microbatches=self._microbatches)
        if here.wrapper[call]:
            return self._lacks(RecordCode.WRAPPER)
        if self._match.bridge is not None:
            return self._across(call, self._match.bridge)
        parent = int(here.parent[call])
        if parent >= 0 and self._partner[parent] < 0:
            return reason(RecordCode.MODULE_UNMATCHED, module=_shown(words.name[here.name[parent]]))
        name = words.name[here.name[call]]
        if words.kind[here.kind[call]] == "parameter":
            return self._lacks(RecordCode.NO_PARAMETER, parameter=name)
        names = (words.name[self._there.name[c]] for c in self._facing.get(call, []))
        facing = [each for each in dict.fromkeys(names) if each]  # the root's name is empty
        if facing:
            return self._lacks(RecordCode.OTHER_CALLS, calls=facing)
        return self._lacks(RecordCode.NOT_CALLED, call=_shown(name))

    def _across(self, call: int, bridge: Bridge) -> Reason:
        """Why a call of another implementation has no counterpart."""
        words = self._words
        name, kind = words.name[self._here.name[call]], words.kind[self._here.kind[call]]
        why = bridge.modules.why_target if self._of_target else bridge.modules.why_reference
        if kind == "module" and name in why:
            return why[name]
        if kind == "parameter":
            return self._lacks(RecordCode.NO_SUCH_WEIGHT)
        return self._lacks(RecordCode.TENSOR_UNKNOWN)

    def _lacks(self, code: RecordCode, **facts: int | str | list[str]) -> Reason:
        return reason(code, side=self._other, **facts)


def _shown(name: str) -> str:
    return name or "(root)"


def are_foreign(target: TreeSide, reference: TreeSide, words: Words) -> bool:
    """Whether the traces are of two implementations: names of modules and weights do not match, or the
    functions are of two frameworks."""
    for kinds in (("module", "parameter"), ("api",)):
        here, there = (_names(side, words, kinds) for side in (target, reference))
        fewest = min(len(here), len(there))
        if fewest < NAMES_FEWEST:
            continue
        if kinds == ("api",):
            packages = [{words.name[c].partition(".")[0] for c in names.tolist()} for names in (here, there)]
            if not packages[0] & packages[1]:
                return True
        elif len(np.intersect1d(here, there)) < KNOWN_BY_NAME * fewest:
            return not _of_same_classes(target, reference, words)
    return False


def _hold_the_same_weights(target: TreeSide, reference: TreeSide, words: Words) -> bool:
    """Whether names and shapes are the same on both sides: then nothing was renumbered, which is told here
    without reading their bits."""
    param, held = words.phase.index("param") if "param" in words.phase else -1, []
    for side in (target, reference):
        rows = np.flatnonzero((side.record_phase == param) & (side.record_summary >= 0))
        shapes = side.summary_shape[side.record_summary[rows]]
        held.append(np.unique(np.stack([side.name[side.record_call[rows]], shapes]), axis=1))
    return np.array_equal(held[0], held[1])


def are_renumbered(target: StepTables, reference: StepTables) -> bool:
    """Whether a weight's bits are in the reference under a name with another number, and under its own name
    there is none, or one of another shape: something was put between numbered modules."""
    (shapes, bits), (here, digests) = _weights(reference), _weights(target)
    names = {digest: name for name, digest in bits.items()}
    for name, digest in digests.items():
        other = names.get(digest, name)
        is_moved = other != name and digests.get(other) != digest and like(other) == like(name)
        if is_moved and shapes.get(name) != here[name]:
            return True
    return False


def _weights(tables: StepTables) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Shapes of weights by name, and digests of those that are not one number throughout."""
    records = tables.records.filter(pl.col("phase").cast(pl.String) == "param").select("call", "summary")
    found = records.join(tables.calls.select("call", "name"), on="call")
    wanted = ("shape", "digest", "minimum", "maximum")
    found = found.join(tables.summaries.select("summary", *wanted), on="summary")
    shapes = {name: tuple(shape or ()) for name, shape in found.select("name", "shape").iter_rows()}
    varied = found.filter(pl.col("minimum") < pl.col("maximum")).select("name", "digest").drop_nulls()
    return shapes, dict(varied.iter_rows())


def _of_same_classes(target: TreeSide, reference: TreeSide, words: Words) -> bool:
    here, there = (_classes(side, words) for side in (target, reference))
    return (here & there).total() >= SAME_CLASSES * max(here.total(), there.total())


def _classes(side: TreeSide, words: Words) -> Counter[tuple[int, str]]:
    """How many module calls there are of each class and last component of a name."""
    modules = side.kind == (words.kind.index("module") if "module" in words.kind else -2)
    names = (words.name[code].rpartition(".")[2] for code in side.plain[modules].tolist())
    return Counter(zip(side.type[modules].tolist(), names, strict=True))


def _names(
    side: TreeSide, words: Words, kinds: tuple[str, ...]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    wanted = np.array([word in kinds for word in words.kind] + [False])
    codes = np.unique(side.plain[wanted[side.kind]])
    return np.array([c for c in codes.tolist() if c >= 0 and words.name[c]], np.int64)
