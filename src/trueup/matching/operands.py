"""Operands of commutative functions: ``y + x`` against ``x + y`` is paired by what the operands hold, and so
is ``c * y`` against ``y * 0.8``, where one run has a number in a tensor's place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trueup.matching.codes import Codes
from trueup.matching.records import RecordPairs
from trueup.matching.thresholds import OPERANDS_ALIKE, OPERANDS_CLEARLY
from trueup.matching.tree import TreeSide, Words
from trueup.store import StepTables

_ARITHMETIC = ("add", "radd", "mul", "rmul", "multiply", "maximum", "minimum", "hypot", "logaddexp")
_COMPARISONS = ("eq", "ne", "equal", "not_equal")
_LOGIC = (
    "and",
    "or",
    "xor",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
)
_COMMUTE = frozenset(_ARITHMETIC + _COMPARISONS + _LOGIC)
_ORDERED = (
    "sub",
    "rsub",
    "div",
    "rdiv",
    "truediv",
    "true_divide",
    "floor_divide",
    "remainder",
    "pow",
    "rpow",
)
_ORDERED_COMPARISONS = ("lt", "le", "gt", "ge", "less", "greater", "less_equal", "greater_equal")
_OF_TWO = _COMMUTE | frozenset(_ORDERED + _ORDERED_COMPARISONS)
OPERANDS = ("input.0", "input.1")
"""slots of both operands"""
_STATISTICS = ("minimum", "maximum", "mean", "l2_norm")


def turn_operands(
    pairs: RecordPairs,
    tables: tuple[StepTables, StepTables],
    sides: tuple[TreeSide, TreeSide],
    words: Words,
) -> RecordPairs:
    """The pairs, with both operands of a commutative function exchanged where that is clearly how they belong
    together; their gradients with them."""
    target, reference = sides
    commutes = np.array([commutes_by_name(word) for word in words.name] + [False])
    slots = [words.slot.index(name) if name in words.slot else -2 for name in OPERANDS]
    pairs = _beside_a_number(pairs, tables, sides, words, commutes, slots)
    call = target.record_call[pairs.target]
    operand = commutes[target.name[call]] & np.isin(target.record_slot[pairs.target], slots)
    operand &= target.record_slot[pairs.target] == reference.record_slot[pairs.reference]
    at = np.flatnonzero(operand)
    if not len(at):
        return pairs
    first, second = _couples(pairs, target, at, slots)
    forward = words.phase.index("forward") if "forward" in words.phase else -2
    is_forward = target.record_phase[pairs.target[first]] == forward
    holds = [_statistics(table) for table in tables]
    t = [_at(holds[0], target, pairs.target[rows[is_forward]]) for rows in (first, second)]
    r = [_at(holds[1], reference, pairs.reference[rows[is_forward]]) for rows in (first, second)]
    straight = np.maximum(_distance(t[0], r[0]), _distance(t[1], r[1]))
    crossed = np.maximum(_distance(t[0], r[1]), _distance(t[1], r[0]))
    turned = (crossed <= OPERANDS_ALIKE) & (straight > OPERANDS_CLEARLY * crossed)
    turned |= _shaped_crosswise(
        [_shapes(target, pairs.target[rows[is_forward]]) for rows in (first, second)],
        [_shapes(reference, pairs.reference[rows[is_forward]]) for rows in (first, second)],
    )
    if not turned.any():
        return pairs
    those = np.isin(call[first], call[first[is_forward][turned]])
    partners, other_slot = pairs.reference.copy(), pairs.other_slot.copy()
    partners[first[those]], partners[second[those]] = (
        pairs.reference[second[those]],
        pairs.reference[first[those]],
    )
    other_slot[first[those]] = other_slot[second[those]] = True
    return replace(pairs, reference=partners, other_slot=other_slot)


def commutes_by_name(name: str) -> bool:
    """Whether the order of both operands is free."""
    return _short(name) in _COMMUTE


def has_two_operands(name: str) -> bool:
    """Whether a function takes two operands, each a tensor or a number."""
    return _short(name) in _OF_TWO


def _short(name: str) -> str:
    return name.rpartition(".")[2].strip("_").lower()


def _beside_a_number(
    pairs: RecordPairs,
    tables: tuple[StepTables, StepTables],
    sides: tuple[TreeSide, TreeSide],
    words: Words,
    commutes: NDArray[np.bool_],
    slots: list[int],
) -> RecordPairs:
    """The pairs, with the one operand of a call that has a number beside it paired with the one of two, where
    that is clearly the same."""
    made = pairs.target.copy(), pairs.reference.copy()
    left = pairs.only_target.copy(), pairs.only_reference.copy()
    other_slot = pairs.other_slot.copy()
    forward = words.phase.index("forward") if "forward" in words.phase else -2
    turned = False
    for at, (side, table, beside) in enumerate(zip(sides, tables, left, strict=True)):
        keys = [side.record_call, side.record_phase, side.record_microbatch]
        is_operand = commutes[side.name[side.record_call]] & np.isin(side.record_slot, slots)
        positions = np.flatnonzero(is_operand[beside])
        if not len(positions):
            continue
        rows = np.flatnonzero(is_operand[made[at]])
        at_key = {tuple(int(key[made[at][row]]) for key in keys): row for row in rows}
        of_two, of_one = _statistics(table), _statistics(tables[1 - at])
        found: dict[int, bool] = {}
        for position in sorted(positions, key=lambda one: side.record_phase[beside[one]] != forward):
            record = beside[position]
            key = tuple(int(column[record]) for column in keys)
            row = at_key.get(key)
            if row is None:
                continue
            if key[1] == forward:
                two = _at(of_two, side, np.array([made[at][row], record]))
                one = _at(of_one, sides[1 - at], made[1 - at][row : row + 1])
                straight, crossed = _distance(two, np.repeat(one, 2, axis=0))
                found[key[0]] = crossed <= OPERANDS_ALIKE and straight > OPERANDS_CLEARLY * crossed
            if found.get(key[0], False):
                beside[position], made[at][row] = made[at][row], record
                other_slot[row] = turned = True
    if not turned:
        return pairs
    order = np.argsort(made[0], kind="stable")
    return replace(
        pairs,
        target=made[0][order],
        reference=made[1][order],
        other_slot=other_slot[order],
        only_target=np.sort(left[0]),
        only_reference=np.sort(left[1]),
    )


def _couples(pairs: RecordPairs, side: TreeSide, at: Codes, slots: list[int]) -> tuple[Codes, Codes]:
    """Positions of first and second operands that belong together: one call, phase and microbatch."""
    record = pairs.target[at]
    keys = np.stack([side.record_call[record], side.record_phase[record], side.record_microbatch[record]])
    slot = side.record_slot[record]
    order = np.lexsort((slot == slots[1], *keys))
    ordered, slot = keys[:, order], slot[order]
    same = (ordered[:, 1:] == ordered[:, :-1]).all(0) & (slot[:-1] == slots[0]) & (slot[1:] == slots[1])
    here = np.flatnonzero(same)
    return at[order[here]], at[order[here + 1]]


def _statistics(tables: StepTables) -> NDArray[np.float64]:
    """One row a summary: what it is of, as numbers that are the same for the same tensor."""
    columns = [tables.summaries["numel"], *(tables.summaries[name] for name in _STATISTICS)]
    return np.stack([c.cast(pl.Float64).fill_null(float("nan")).to_numpy() for c in columns], axis=1)


def _at(statistics: NDArray[np.float64], side: TreeSide, records: Codes) -> NDArray[np.float64]:
    summary = side.record_summary[records]
    out = np.full((len(records), 1 + len(_STATISTICS)), np.nan)
    out[summary >= 0] = statistics[summary[summary >= 0]]
    return out


def _shapes(side: TreeSide, records: Codes) -> Codes:
    summary = side.record_summary[records]
    return np.where(summary >= 0, side.summary_shape[summary], -1)


def _shaped_crosswise(target: list[Codes], reference: list[Codes]) -> NDArray[np.bool_]:
    """Whether each operand has the shape of the other one of the other run, and the two have two shapes; of a
    tensor that is rounding alone nothing else tells."""
    (a, b), (c, d) = target, reference
    return np.asarray((a == d) & (b == c) & (a != b) & (a >= 0) & (b >= 0))


def _distance(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far two tensors are apart by their statistics, 0 to 1; infinite where that is not known. Of one
    number repeated the number alone counts: as operands any two shapes of it are the same."""
    scale = np.abs(left) + np.abs(right)
    with np.errstate(invalid="ignore", over="ignore"):  # infinite statistics: not known
        apart = np.divide(np.abs(left - right), scale, out=np.zeros_like(scale), where=scale != 0)
    constant = (left[:, 1] == left[:, 2]) & (right[:, 1] == right[:, 2])
    far = np.where(constant, apart[:, 1], apart.max(1))
    return np.where(np.isnan(far) | (~constant & (left[:, 0] != right[:, 0])), np.inf, far)
