"""One step of all ranks as the tables of one process that had run it alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from trueup.merging.assembling import Copies, Member, assembled
from trueup.merging.nodes import Node, Part, Unfit, Values
from trueup.merging.ranks import Call, CallKey, RankStep
from trueup.merging.summary import STATISTICS, Summary, summary_of_values
from trueup.store import StepTables
from trueup.types.layout import BATCH, Layout, Placed
from trueup.types.placement import At

LAST_ONLY = ("accumulated", "clipped")
"""gradients of a parameter that only the last record of a step tells"""
Reader = Callable[[int, dict[str, Any]], Values | None]
"""rank and row of summaries -> values of that shape"""


@dataclass(frozen=True, slots=True)
class Source:
    """A record of one rank."""

    rank: RankStep
    row: int
    call: Call
    occurrence: int
    """how many of this rank came before under the same key: of a gradient its microbatch"""


@dataclass(slots=True, kw_only=True)
class MergedStep:
    """Tables, and the trees behind the rows of ``summaries`` whose values can be put together."""

    tables: StepTables
    nodes: dict[int, Node] = field(default_factory=dict)
    merged: int = 0
    """records of several parts"""
    unfit: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    copies: list[tuple[str, Copies]] = field(default_factory=list)
    """record -> copies that differ"""


def merge_step(step: int, ranks: Sequence[RankStep], layout: Layout, read: Reader) -> MergedStep:
    """Calls by their place in the program, records by call, phase and slot, parts by the layout."""
    calls, number_of = _merged_calls(ranks)
    groups = _groups(ranks)
    seldom = _seen_of_some(groups)
    out = MergedStep(
        tables=StepTables(
            step=step, rank=0, calls=calls[0], records=_EMPTY, summaries=_EMPTY, stacks=calls[1]
        )
    )
    records: list[tuple[Any, ...]] = []
    functions = 0
    summaries: list[Summary] = []
    kept: list[bool] = []
    if seldom:
        out.notes.append(
            f"gradients as backward leaves them were seen of {seldom} parameters only, and left out: the "
            "schedule runs parts of backward by itself"
        )
        groups = {key: sources for key, sources in groups.items() if key[2] != "accumulated"}
    for key in sorted(groups, key=lambda one: _order(one, groups[one])):
        (call, phase, slot), sources = key, groups[key]
        lead = sources[0]
        row: int | None = None
        reason = lead.rank.records["reason"][lead.row]
        try:
            members = [_member(source, read) for source in sources]
            placed = _placed(layout, lead, phase, slot)
            node, copies = assembled(members, placed, layout)
            summary = _known(node, members)
            if copies.differing:
                out.copies.append((_said(lead, phase, slot), copies))
                reason = _copies_said(copies)
            row = len(summaries)
            stored = all(member.part.stored for member in members)
            if stored:
                out.nodes[row] = node
            summaries.append(summary)
            kept.append(stored)
            out.merged += len(members) > 1
        except Unfit as error:
            functions += lead.call.key[2] == "api"
            if _elsewhere(layout, lead, phase, slot) or lead.call.key[2] == "api":
                continue
            reason = f"the parts of {len(sources)} ranks were not merged: {error}"
            out.unfit.append(f"{_said(lead, phase, slot)}: {error}")
        microbatch = max(call_microbatch(lead), 0)
        grad = lead.rank.records["requires_grad"][lead.row]
        records.append((number_of[call], phase, slot, microbatch, row, grad, reason))
    if functions:
        out.notes.append(
            f"{functions} tensors of the framework's functions are left out: no placement is known"
        )
    out.tables = StepTables(
        step=step,
        rank=0,
        calls=calls[0],
        records=_frame(records, _RECORDS),
        summaries=_summaries(summaries, kept),
        stacks=calls[1],
    )
    return out


def call_microbatch(source: Source) -> int:
    """Of the step."""
    return source.call.microbatch


def _placed(layout: Layout, source: Source, phase: str, slot: str) -> Placed:
    kind = source.rank.rows["kind"][source.rank.records["call"][source.row]]
    of = {"parameter": layout.of_parameter, "api": layout.of_function}.get(kind, layout.of_tensor)
    return of(source.call.name, phase, slot)


def _elsewhere(layout: Layout, source: Source, phase: str, slot: str) -> bool:
    """Whether it is what one pipeline stage hands to the next: nothing of the whole model."""
    place = _placed(layout, source, phase, slot).placements.get(layout.pipeline)
    return isinstance(place, At) and place.stage % layout.num_stages != source.call.stage


def _member(source: Source, read: Reader) -> Member:
    rank, records = source.rank, source.rank.records
    row, call = records["summary"][source.row], records["call"][source.row]
    if row is None:
        raise Unfit(f"rank {rank.rank} has no summary of it ({records['reason'][source.row]})")
    summary, sketched = rank.summary(row)
    kept = rank.stored(row)

    def values() -> Values | None:
        return read(rank.rank, rank.summary_row(row))

    parameter = rank.rows["kind"][call] == "parameter"
    coordinate = dict(rank.coordinate)
    if parameter:
        coordinate[BATCH] = source.occurrence
    else:
        for axis in rank.batch_axes:
            coordinate[axis] = 0
        coordinate[BATCH] = source.call.position
    return Member(
        part=Part(rank.rank, summary, values if kept else None),
        coordinate=coordinate,
        stage=source.call.stage,
        own=rank.own(call, row),
        sketched=sketched,
    )


def _known(node: Node, members: Sequence[Member]) -> Summary:
    """From summaries; where those leave something open and values were kept, from those."""
    found = node.summary()
    complete = found.digest is not None and found.sketch is not None and found.l2_norm is not None
    if len(members) == 1 or complete or not all(member.part.stored for member in members):
        return found
    values = node.values()
    return found if values is None else summary_of_values(values, found.dtype)


def _groups(ranks: Sequence[RankStep]) -> dict[tuple[CallKey, str, str], list[Source]]:
    groups: dict[tuple[CallKey, str, str], list[Source]] = {}
    for rank in ranks:
        records = rank.records
        seen: dict[Any, int] = {}
        last: dict[Any, Source] = {}
        columns = zip(records["call"], records["phase"], records["slot"], strict=True)
        for row, (number, phase, slot) in enumerate(columns):
            call = rank.calls[number]
            if call is None:
                continue
            key = call.key, phase, slot
            own = key, call.position, call.stage
            occurrence = seen.get(own, 0)
            seen[own] = occurrence + 1
            parameter = call.microbatch < 0
            if parameter and slot in LAST_ONLY:
                last[key] = Source(rank, row, call, 0)
            elif occurrence == 0 or (parameter and slot == "local"):
                groups.setdefault(key, []).append(Source(rank, row, call, occurrence))
        for key, source in last.items():
            groups.setdefault(key, []).append(source)
    return groups


def _seen_of_some(groups: Mapping[tuple[CallKey, str, str], list[Source]]) -> int:
    """Parameters whose gradient was seen as backward left it, where others' were not: a schedule that runs
    parts of backward by itself shows it of those whose backward came whole."""
    whole = sum(phase == "param_grad" and slot == "accumulated" for _, phase, slot in groups)
    received = sum(phase == "param_grad" and slot == "clipped" for _, phase, slot in groups)
    return whole if whole < received else 0


def _order(key: tuple[CallKey, str, str], sources: Sequence[Source]) -> tuple[int, ...]:
    """Where a record stands in the step: forward stage by stage, backward the other way, updates last."""
    _, phase, slot = key
    lead = sources[0]
    if phase == "param":
        return 0, 0, 0, 0, lead.row
    if phase == "optimizer" or slot == "clipped":
        return 2, 0, 0, lead.call.stage, lead.row
    backward = phase in ("backward", "param_grad") or "recompute" in _modes(lead.call.key)
    microbatch = lead.call.microbatch if lead.call.microbatch >= 0 else 1 << 30
    stage = -lead.call.stage if backward else lead.call.stage
    return 1, microbatch, int(backward), stage, lead.row


def _modes(key: Any) -> tuple[str, ...]:
    return (key[1],) if len(key) == 5 else ()


def _said(source: Source, phase: str, slot: str) -> str:
    name = source.call.name or "(root)"
    return f"{name} {phase} {slot}" if phase != "forward" else f"{name} {slot}"


def _copies_said(copies: Copies) -> str:
    said = []
    for axis, ranks, far in copies.differing:
        distance = "" if far is None else f" by {far:.2g}"
        said.append(f"along {axis} rank {', '.join(map(str, ranks))} differs{distance}")
    return f"copies that should be the same are not: {'; '.join(said)}; their mean is compared"


# -- calls ------------------------------------------


def _merged_calls(ranks: Sequence[RankStep]) -> tuple[tuple[pl.DataFrame, pl.DataFrame], dict[CallKey, int]]:
    """The union of all call trees in execution order, its stacks, and the number of each call."""
    lead: dict[CallKey, tuple[RankStep, int, Call]] = {}
    children: dict[CallKey | None, list[CallKey]] = {}
    for rank in ranks:
        for row, call in enumerate(rank.calls):
            if call is None or call.key in lead:
                continue
            lead[call.key] = rank, row, call
            parent = rank.rows["parent"][row]
            above = None if parent is None else rank.calls[parent]
            children.setdefault(None if above is None else above.key, []).append(call.key)

    def place(key: CallKey) -> tuple[int, ...]:
        _, row, call = lead[key]
        return call.microbatch, int("recompute" in _modes(key)), call.stage, row

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
    rows: list[tuple[Any, ...]] = []
    for key in order:
        rank, row, call = lead[key]
        columns = rank.rows
        above = columns["parent"][row]
        parent = None if above is None else rank.calls[above]
        stack = _stack(rank, columns["stack"][row], stacks, frames)
        seen = counts.get(call.name, 0)
        counts[call.name] = seen + 1
        rows.append(
            (
                len(rows),
                None if parent is None else number_of[parent.key],
                columns["kind"][row],
                call.name,
                columns["type"][row],
                call.key[-1],
                max(call.microbatch, 0),
                columns["mode"][row],
                columns["opaque"][row],
                stack,
                columns["arguments"][row],
                seen,
            )
        )
    return (_frame(rows, _CALLS), _frame(frames, _STACKS)), number_of


def _stack(
    rank: RankStep, number: int | None, known: dict[tuple[int, int], int], frames: list[tuple[int, list[str]]]
) -> int | None:
    if number is None:
        return None
    at = rank.rank, number
    if at not in known:
        known[at] = len(frames)
        frames.append((len(frames), rank.stack(number)))
    return known[at]


# -- tables ------------------------------------------

_CALLS = {
    "call": pl.Int32,
    "parent": pl.Int32,
    "kind": pl.String,
    "name": pl.String,
    "type": pl.String,
    "ordinal": pl.Int32,
    "microbatch": pl.Int32,
    "mode": pl.String,
    "opaque": pl.Boolean,
    "stack": pl.Int32,
    "arguments": pl.String,
    "global_ordinal": pl.Int32,
}
_RECORDS = {
    "call": pl.Int32,
    "phase": pl.String,
    "slot": pl.String,
    "microbatch": pl.Int32,
    "summary": pl.Int32,
    "requires_grad": pl.Boolean,
    "reason": pl.String,
}
_STACKS = {"stack": pl.Int32, "frames": pl.List(pl.String)}
_EMPTY = pl.DataFrame()


def _frame(rows: Sequence[tuple[Any, ...]], schema: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row")


def _summaries(rows: Sequence[Summary], stored: Sequence[bool]) -> pl.DataFrame:
    kinds = {name: pl.Int64 if name.startswith("num") else pl.Float64 for name in STATISTICS}
    sketches = [None if one.sketch is None else one.sketch.astype("<f4").tobytes() for one in rows]
    num = len(rows)
    return pl.DataFrame(
        {
            "summary": pl.Series(np.arange(num), dtype=pl.Int32),
            "dtype": pl.Series([one.dtype for one in rows], dtype=pl.String),
            "shape": pl.Series([list(one.shape) for one in rows], dtype=pl.List(pl.Int64)),
            "device": pl.Series(["merged"] * num, dtype=pl.String),
            "placement": pl.Series([None] * num, dtype=pl.String),
            "numel": pl.Series([one.numel for one in rows], dtype=pl.Int64),
            **{
                name: pl.Series([getattr(one, name) for one in rows], dtype=kind)
                for name, kind in kinds.items()
            },
            "digest": pl.Series([one.digest for one in rows], dtype=pl.UInt64),
            "crc32": pl.Series([None] * num, dtype=pl.UInt32),
            "sketch": pl.Series(sketches, dtype=pl.Binary),
            "chunk": pl.Series([at if kept else None for at, kept in enumerate(stored)], dtype=pl.Int32),
            "tensor": pl.Series(["merged" if kept else None for kept in stored], dtype=pl.String),
        }
    )
