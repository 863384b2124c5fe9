"""The call trees of all ranks as one: every call once, in the order in which one process runs them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import polars as pl

from trueup.merging.ranks import Call, CallKey, RankStep
from trueup.merging.tables import CALLS, STACKS, table


class Functions(Enum):
    """Of which of the framework's functions a whole can be made: layouts place what modules take and give."""

    ALL = "all"
    INSIDE = "inside"
    """those that modules call: where ranks differ in their samples alone"""
    NONE = "none"

    def holds(self, kind: str, key: CallKey) -> bool:
        """Whether a whole can be made of a call."""
        if self is Functions.ALL or kind != "api":
            return True
        return self is Functions.INSIDE and not isinstance(key.above, int)


def merged_calls(
    ranks: Sequence[RankStep], functions: Functions
) -> tuple[tuple[pl.DataFrame, pl.DataFrame], dict[CallKey, int]]:
    """The union of all call trees in execution order, its stacks, and the number of each call; arguments of
    functions that no whole is made of are left out."""
    lead: dict[CallKey, tuple[RankStep, int, Call]] = {}
    children: dict[CallKey | None, list[CallKey]] = {}
    for rank in ranks:
        for row, call in enumerate(rank.calls):
            if call is None or call.key in lead:
                continue
            lead[call.key] = rank, row, call
            parent = rank.view.parent[row]
            above = None if parent < 0 else rank.calls[parent]
            children.setdefault(None if above is None else above.key, []).append(call.key)

    def place(key: CallKey) -> tuple[int, ...]:
        _, row, call = lead[key]
        return call.microbatch, int(key.mode == "recompute"), call.stage, row

    order: list[CallKey] = []
    todo = sorted(children.get(None, []), key=place, reverse=True)
    while todo:
        key = todo.pop()
        order.append(key)
        todo += sorted(children.get(key, []), key=place, reverse=True)
    number_of = {key: number for number, key in enumerate(order)}
    stacks: dict[tuple[int, int], int] = {}
    frames: list[tuple[int, list[str]]] = []
    counts: dict[str, int] = {}
    rows: list[tuple[object, ...]] = []
    for key in order:
        rank, row, call = lead[key]
        view = rank.view
        above = None if view.parent[row] < 0 else rank.calls[view.parent[row]]
        stack = _stack(rank, view.stack[row], stacks, frames)
        seen = counts.get(call.name, 0)
        counts[call.name] = seen + 1
        rows.append(
            (
                len(rows),
                None if above is None else number_of[above.key],
                view.kind[row],
                call.name,
                view.type[row],
                call.key.ordinal,
                max(call.microbatch, 0),
                view.mode[row],
                view.opaque[row],
                stack,
                view.arguments_text[row] if functions.holds(view.kind[row], key) else None,
                seen,
            )
        )
    return (table(rows, CALLS), table(frames, STACKS)), number_of


def _stack(
    rank: RankStep, number: int | None, known: dict[tuple[int, int], int], frames: list[tuple[int, list[str]]]
) -> int | None:
    if number is None:
        return None
    at = rank.rank, number
    if at not in known:
        known[at] = len(frames)
        frames.append((len(frames), rank.view.frames.get(number) or []))
    return known[at]
