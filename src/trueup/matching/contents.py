"""Calls that a run makes in another order: functions of one place paired by what they are given and make.

``a + b * c`` against ``b * c + a`` is one computation, and so is ``a - b`` against ``a + -b``; but what
comes first is another product, or another sum, and a pairing by name and order crosses them. Contents tell,
by their digests. A call that agrees with its partner in nothing, while another one of the other run is given
the same tensors, is that one's. Where it makes, by another function, what another one makes, the two are
different ways to one result, which are nothing to hold against each other. What is left is paired in order,
so that a fault in a call keeps its place.

Only functions within one module call (or outside of all), and only contents that tell: of several elements
that are not all one number, or alone in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from trueup.matching.align import REORDERED
from trueup.matching.calls import PASS_CODE, CallPairs
from trueup.matching.codes import Hashes, mix, sum_by
from trueup.matching.names import family
from trueup.matching.operands import OPERANDS, commutes_by_name
from trueup.matching.tree import TreeSide, Words
from trueup.store import StepTables
from trueup.types.arrays import Bools


@dataclass(frozen=True, slots=True)
class _Contents:
    """By call: what it is given and what it makes in the forward pass, 0 where a digest is lacking; and where
    that tells the call from others."""

    given: Hashes
    made: Hashes
    given_tells: Bools
    made_tells: Bools
    operands: tuple[Hashes, Hashes]
    """contents that tell at both operands of a function that commutes, else 0"""
    of_two: Bools
    """whether that is given two tensors, not a tensor and a number"""


def pair_same_contents(
    tables: tuple[StepTables, StepTables], sides: tuple[TreeSide, TreeSide], words: Words, pairs: CallPairs
) -> None:
    """Functions that changed places, taken from their partners and given to those of the same contents."""
    reference = sides[1]
    functions = [side.kind == (words.kind.index("api") if "api" in words.kind else -2) for side in sides]
    if not all(one.any() for one in functions):
        return
    held = [_contents(side, words, _telling(table)) for side, table in zip(sides, tables, strict=True)]
    apart = [_apart(pairs, held, functions[0]), np.zeros(reference.num_calls, bool)]
    partners = pairs.reference_of[apart[0]]
    apart[1][partners[partners >= 0]] = True
    apart[1] |= functions[1] & (pairs.target_of < 0)
    if not (apart[0] & (pairs.reference_of >= 0)).any():
        return
    for left, right in _groups(sides, pairs, apart):
        _Group(sides, words, pairs, held).settle(left, right)


def _telling(tables: StepTables) -> Bools:
    """Summaries of several elements that are not all one number."""
    held = tables.summaries.select(several=pl.col("numel") > 1, varied=pl.col("minimum") < pl.col("maximum"))
    return np.asarray(
        held.select((pl.col("several") & pl.col("varied")).fill_null(False)).to_series().to_numpy()
    )


def _contents(side: TreeSide, words: Words, telling: Bools) -> _Contents:
    forward = np.isin(side.record_phase, _starting(words.phase, "forward"))
    summary = side.record_summary
    digest = np.where(summary >= 0, side.summary_digest[np.maximum(summary, 0)], 0)
    tells = (summary >= 0) & telling[np.maximum(summary, 0)] & (digest != 0)
    free = np.array([commutes_by_name(name) for name in words.name])[side.name][side.record_call]
    sums, telling_sums = [], []
    for head in ("input", "output"):
        rows = forward & np.isin(side.record_slot, _starting(words.slot, head))
        call, num = side.record_call[rows], side.num_calls
        slot = np.where(free[rows] & (head == "input"), -1, side.record_slot[rows])
        total = sum_by(call, mix(slot, digest[rows]), num)
        total[np.bincount(call[digest[rows] == 0], minlength=num) > 0] = 0
        num_telling = np.bincount(call[tells[rows]], minlength=num)
        least = 1 if head == "input" else np.maximum(np.bincount(call, minlength=num), 1)
        sums.append(total)
        telling_sums.append((total != 0) & (num_telling >= least))
    operands, has = [], []
    for operand in OPERANDS:
        rows = forward & free & np.isin(side.record_slot, _starting(words.slot, operand))
        held, there = np.zeros(side.num_calls, np.uint64), np.zeros(side.num_calls, bool)
        held[side.record_call[rows]] = np.where(tells[rows], digest[rows], 0)
        there[side.record_call[rows]] = True
        operands.append(held)
        has.append(there)
    return _Contents(
        given=sums[0],
        made=sums[1],
        given_tells=telling_sums[0],
        made_tells=telling_sums[1],
        operands=(operands[0], operands[1]),
        of_two=has[0] & has[1],
    )


def _starting(words: Iterable[str], head: str) -> list[int]:
    return [code for code, word in enumerate(words) if word.startswith(head)]


def _apart(pairs: CallPairs, held: list[_Contents], functions: Bools) -> Bools:
    """Functions of the target without a partner, or that agree with it neither in what they are given nor in
    what they make."""
    partner = np.maximum(pairs.reference_of, 0)
    known = (held[0].given != 0) & (held[0].made != 0)
    known &= (held[1].given[partner] != 0) & (held[1].made[partner] != 0)
    other = (held[0].given != held[1].given[partner]) & (held[0].made != held[1].made[partner])
    return np.asarray(functions & ((pairs.reference_of < 0) | (known & other)))


def _groups(
    sides: tuple[TreeSide, TreeSide], pairs: CallPairs, apart: list[Bools]
) -> Iterator[tuple[list[int], list[int]]]:
    """Such functions of both sides within one pair of calls, microbatch and mode, in their order."""
    found: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
    target, reference = sides
    for call in np.flatnonzero(apart[0]).tolist():
        parent = int(target.parent[call])
        place = (int(pairs.reference_of[parent]) if parent >= 0 else -1), int(target.mode[call])
        if parent < 0 or place[0] >= 0:
            found.setdefault((*place, int(target.microbatch[call])), ([], []))[0].append(call)
    for call in np.flatnonzero(apart[1]).tolist():
        key = int(reference.parent[call]), int(reference.mode[call]), int(reference.microbatch[call])
        if key in found:
            found[key][1].append(call)
    return (group for group in found.values() if all(group))


class _Group:
    def __init__(
        self, sides: tuple[TreeSide, TreeSide], words: Words, pairs: CallPairs, held: list[_Contents]
    ) -> None:
        self._sides, self._words, self._pairs, self._held = sides, words, pairs, held

    def settle(self, left: list[int], right: list[int]) -> None:
        """Pair what is the same, part what only makes the same, and pair the rest in order."""
        pairs = self._pairs
        paired = [(call, int(pairs.reference_of[call])) for call in left if pairs.reference_of[call] >= 0]
        same = self._same(left, right)
        reordered = set(same.values())
        other = self._alike(*_without(same, left, right), by_name=False)
        more = {call for call, one in paired if call not in same and self._is_one_more(call, one)}
        gone, gone_there = {*same, *other, *more}, reordered | set(other.values())
        if not same and not any(call in gone or one in gone_there for call, one in paired):
            return
        for call, one in paired:
            if call in gone or one in gone_there:
                pairs.reference_of[call] = pairs.target_of[one] = -1
        for call, one in same.items():
            self._pair(call, one, "reordered")
        self._pair_in_order(paired, gone, gone_there)

    def _same(self, left: list[int], right: list[int]) -> dict[int, int]:
        """Calls of the target and the one call each of the reference that is given the same, or the same
        tensor beside a number."""
        same = self._alike(left, right, by_name=True)
        return same | self._sharing(*_without(same, left, right))

    def _sharing(self, left: list[int], right: list[int]) -> dict[int, int]:
        """Calls of the target and the one call each of the reference that has a number beside the same tensor
        where the other has another tensor."""
        found: list[dict[tuple[str, int, bool], set[int]]] = []
        for held, side, calls in zip(self._held, self._sides, (left, right), strict=True):
            of: dict[tuple[str, int, bool], set[int]] = {}
            for call in calls:
                name = family(self._words.name[side.name[call]])
                for content in {int(one[call]) for one in held.operands} - {0}:
                    of.setdefault((name, content, bool(held.of_two[call])), set()).add(call)
            found.append(of)
        pairs = [
            (calls, found[1].get((name, content, not two), set()))
            for (name, content, two), calls in found[0].items()
        ]
        sure = {(min(one), min(other)) for one, other in pairs if len(one) == len(other) == 1}
        own, there = Counter(call for call, _ in sure), Counter(one for _, one in sure)
        return {call: one for call, one in sure if own[call] == there[one] == 1}

    def _pair_in_order(self, paired: list[tuple[int, int]], gone: set[int], gone_there: set[int]) -> None:
        """Those that lost their partner to another call, with the next one of their name that did."""
        waiting: dict[int, list[int]] = {}
        for one in sorted(one for call, one in paired if call in gone and one not in gone_there):
            waiting.setdefault(int(self._sides[1].exact[one]), []).append(one)
        for call in (call for call, one in paired if one in gone_there and call not in gone):
            same = waiting.get(int(self._sides[0].exact[call]))
            if same and not self._is_one_more(call, same[0]):
                self._pair(call, same.pop(0), "aligned")

    def _is_one_more(self, call: int, one: int) -> bool:
        """Whether two calls of tensors of other shapes are left, of which one only repeats what its run calls
        elsewhere."""
        (left, right), (held, other) = self._sides, self._held
        if left.shapes[call] == right.shapes[one]:
            return False
        return self._is_repeated(held, left, call) or self._is_repeated(other, right, one)

    @staticmethod
    def _is_repeated(held: _Contents, side: TreeSide, call: int) -> bool:
        same = (held.given == held.given[call]) & (side.exact == side.exact[call])
        return bool(held.given_tells[call] and same.sum() > 1)

    def _pair(self, call: int, one: int, how: str) -> None:
        pairs = self._pairs
        pairs.reference_of[call], pairs.target_of[one] = one, call
        pairs.pass_code[call] = PASS_CODE[how]
        pairs.confidence[call] = max(float(pairs.confidence[call]), REORDERED)

    def _alike(self, left: list[int], right: list[int], *, by_name: bool) -> dict[int, int]:
        """Calls of the target and the one call each of the reference with the same contents: of one function
        what it is given, of another what it makes."""
        found: list[dict[tuple[object, ...], list[int]]] = []
        for at, calls in enumerate((left, right)):
            of: dict[tuple[object, ...], list[int]] = {}
            for call in calls:
                both = self._held[at]
                held = both.given[call] if by_name else both.made[call]
                if both.given_tells[call] if by_name else both.made_tells[call]:
                    name = (family(self._words.name[self._sides[at].name[call]]),) if by_name else ()
                    of.setdefault((*name, int(held)), []).append(call)
            found.append(of)
        shared = found[0].keys() & found[1].keys()
        unique = [key for key in shared if len(found[0][key]) == len(found[1][key]) == 1]
        return {found[0][key][0]: found[1][key][0] for key in unique}


def _without(taken: dict[int, int], left: list[int], right: list[int]) -> tuple[list[int], list[int]]:
    there = set(taken.values())
    return [one for one in left if one not in taken], [one for one in right if one not in there]
