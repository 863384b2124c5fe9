"""One step of all ranks as the tables of one process that had run it alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trueup.merging.assembling import Copies, Member, alike, assembled
from trueup.merging.nodes import Node, RankPart, Unfit, Values
from trueup.merging.ranks import Call, CallKey, RankStep
from trueup.merging.summary import Summary, summary_of_values
from trueup.merging.tables import RECORDS, summaries_table, table
from trueup.merging.tree import Functions, merged_calls
from trueup.store import StepTables
from trueup.store.own_sums import sums_elsewhere
from trueup.types.codes import MergingCode, RecordCode
from trueup.types.layout import BATCH, Layout, Placed
from trueup.types.placement import At, Partial, Replicate, Shard
from trueup.types.reason import Reason, reason
from trueup.types.trace import SummaryRow

LAST_ONLY = ("accumulated", "clipped")
"""gradients of a parameter that only the last record of a step tells, as what its last update leaves"""
Reader = Callable[[int, SummaryRow], Values | None]
"""rank and row of summaries -> values of that shape"""


class RecordKey(NamedTuple):
    """What makes a record the same one on every rank."""

    call: CallKey
    phase: str
    slot: str


@dataclass(frozen=True, slots=True)
class RankRecord:
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
    nodes: dict[int, Node]
    unfit: list[Reason]
    """records whose parts were not merged, and why"""
    copies: list[tuple[str, Copies]]
    """record -> copies that differ"""
    apart: dict[int, Copies]
    """the same by row of ``records``"""
    notes: list[Reason]


def merge_step(
    step: int,
    ranks: Sequence[RankStep],
    layout: Layout,
    read: Reader,
    functions: Functions = Functions.ALL,
) -> MergedStep:
    """Calls by their place in the program, records by call, phase and slot, parts by the layout."""
    (calls, stacks), number_of = merged_calls(ranks, functions)
    groups = _groups(ranks)
    merging = _Merging(layout, read, number_of)
    known = {key: sources for key, sources in groups.items() if functions.holds(_kind(sources[0]), key.call)}
    merging.functions, groups = len(groups) - len(known), known
    seldom = _seen_of_some(groups) if layout.num_stages > 1 else 0
    if seldom:
        merging.notes.append(reason(MergingCode.GRADIENTS_LEFT_OUT, parameters=seldom))
        groups = {key: sources for key, sources in groups.items() if key.slot != "accumulated"}
    if all(sums_elsewhere(rank.view) for rank in ranks):  # what is left last is one microbatch's
        groups = {key: sources for key, sources in groups.items() if key.slot != "accumulated"}
    for key in sorted(groups, key=lambda one: _order(one, groups[one])):
        merging.add(key, groups[key])
    if merging.functions:
        merging.notes.append(reason(MergingCode.FUNCTIONS_LEFT_OUT, tensors=merging.functions))
    return MergedStep(
        tables=StepTables(
            step=step,
            rank=0,
            calls=calls,
            records=table(merging.records, RECORDS),
            summaries=summaries_table(merging.summaries, [row in merging.nodes for row in merging.rows()]),
            stacks=stacks,
            gaps=ranks[0].view.tables.gaps,
            coarse_statistics=ranks[0].view.tables.coarse_statistics,
            reasons=merging.reasons,
        ),
        nodes=merging.nodes,
        unfit=merging.unfit,
        copies=merging.copies,
        apart=merging.apart,
        notes=merging.notes,
    )


class _Merging:
    """Rows of the merged step as they come."""

    def __init__(self, layout: Layout, read: Reader, number_of: Mapping[CallKey, int]) -> None:
        self._layout, self._read, self._number_of = layout, read, number_of
        self.records: list[tuple[object, ...]] = []
        self.summaries: list[Summary] = []
        self.nodes: dict[int, Node] = {}
        self.unfit: list[Reason] = []
        self.reasons: dict[int, Reason] = {}
        """of records, by row"""
        self.copies: list[tuple[str, Copies]] = []
        self.apart: dict[int, Copies] = {}
        self.notes: list[Reason] = []
        self._of_no_sample: set[tuple[CallKey, str]] = set()
        """the same in every microbatch (positions): their gradients add"""
        self._second: set[tuple[CallKey, str]] = set()
        """samples lie along their second dimension (states of recurrent layers, sequences first)"""
        self._batch: tuple[int, ...] | None = None
        """shape of the token ids that the model is given: rows, tokens"""
        self._shapes: dict[int, dict[tuple[int, int], tuple[int, ...]]] = {}
        """of each microbatch: the same of each rank and microbatch that is put together in it"""
        self.functions = 0
        """tensors of the framework's functions that were left out"""

    def rows(self) -> range:
        """Of summaries."""
        return range(len(self.summaries))

    def add(self, key: RecordKey, sources: Sequence[RankRecord]) -> None:
        """One record of the whole, from those of its ranks."""
        (call, phase, slot), lead = key, sources[0]
        row: int | None = None
        known = lead.rank.view.tables.reasons.get(lead.row)
        text = lead.rank.view.reason[lead.row]
        try:
            copies = self._summarised(key, sources)
            row = len(self.summaries) - 1
            if copies.differing:
                self.copies.append((_named(lead, phase, slot), copies))
                self.apart[len(self.records)] = copies
                known = copies_reason(copies)
        except Unfit as error:
            if _kind(lead) == "api":
                self.functions += 1
                return
            if _elsewhere(self._layout, lead, phase, slot):
                return
            known = reason(RecordCode.PARTS_NOT_MERGED, error.reason, num_ranks=len(sources))
            record = _named(lead, phase, slot)
            self.unfit.append(reason(MergingCode.RECORD_NOT_MERGED, error.reason, record=record))
        microbatch, grad = max(lead.call.microbatch, 0), lead.rank.view.requires_grad[lead.row]
        if known is not None:
            self.reasons[len(self.records)] = known
        self.records.append((self._number_of[call], phase, slot, microbatch, row, grad, text))

    def _summarised(self, key: RecordKey, sources: Sequence[RankRecord]) -> Copies:
        """Append the summary of the whole; says which copies differ."""
        call, phase, slot = key
        members = [_member(source, self._read) for source in sources]
        placed = _placed(self._layout, sources[0], phase, slot)
        several = len({member.coordinate.get(BATCH, 0) for member in members}) > 1
        shapes = self._shapes.setdefault(sources[0].call.microbatch, {})
        if phase == "forward" and isinstance(call.above, int) and len(members[0].part.shape) == 2:
            for member in members:
                shapes.setdefault(_place(member), member.part.shape)
        batch = self._along_batch(key, members, shapes, sources[0], several=several)
        if batch is not None:
            placed = Placed({**placed.placements, BATCH: batch}, placed.split)
        elif phase == "forward" and isinstance(call.above, int) and len(members[0].part.shape) == 2:
            self._batch = self._batch or members[0].part.shape
        node, copies = assembled(members, placed, self._layout)
        if several and _is_by_itself(members, sources[0], phase, copies):
            raise Unfit(MergingCode.PLACEMENT_UNKNOWN, axis=BATCH)
        if phase == "forward" and several and node.shape[:1] == (1,) and (call, slot) not in self._second:
            self._of_no_sample.add((call, slot))
        self.summaries.append(_known(node, members))
        if all(member.part.stored for member in members):
            self.nodes[len(self.summaries) - 1] = node
        return copies

    def _along_batch(
        self,
        key: RecordKey,
        members: Sequence[Member],
        shapes: Mapping[tuple[int, int], tuple[int, ...]],
        source: RankRecord,
        *,
        several: bool,
    ) -> Partial | Replicate | Shard | None:
        """How microbatches hold a tensor that has no row a sample, or not along its first dimension."""
        tensor = key.call, key.slot
        if key.phase == "backward":
            if tensor in self._of_no_sample:
                return Partial()
            return Shard(1) if several and tensor in self._second else None
        if key.phase == "loss" and len(shapes) > 1 and _is_one_label(members):
            raise Unfit(MergingCode.PLACEMENT_UNKNOWN, axis=BATCH)  # of one token: which one, no order tells
        if key.phase != "forward" or not several:
            return None
        if self._is_of_no_sample(members, _kind(source)):
            self._of_no_sample.add(tensor)
            return Replicate()
        if self._lie_second(members) or _are_packed(members, shapes):
            self._second.add(tensor)
            return Shard(1)
        return None

    def _is_of_no_sample(self, members: Sequence[Member], kind: str) -> bool:
        """Whether a tensor is the same in all microbatches, and has one entry a token and none a row, or is
        what a function takes, as a weight is, and has as many entries as neither rows nor all tokens."""
        shape, (num, tokens) = members[0].part.shape, self._batch or (0, 0)
        taken = kind == "api" and shape and shape[0] not in (1, num, num * tokens)
        if not taken and (shape[:1] != (tokens,) or tokens == num or num in shape[1:2]):
            return False
        first = members[0].part.summary()
        return all(alike(first, member.part.summary()) for member in members[1:])

    def _lie_second(self, members: Sequence[Member]) -> bool:
        """Whether the rows of a microbatch lie along the second dimension, and cannot along the first."""
        shape, (num, tokens) = members[0].part.shape, self._batch or (0, 0)
        if num < 2 or shape[1:2] != (num,) or len(shape) < 3:
            return False
        return (shape[0] == tokens != num) or shape[0] % num != 0


def _are_packed(members: Sequence[Member], given: Mapping[tuple[int, int], tuple[int, ...]]) -> bool:
    """Whether each microbatch is one row of as many tokens as fill it: rows of other lengths make one. Where
    it has several rows, what is one for all of them (positions) is as wide as they are, and no row."""
    shapes = [member.part.shape for member in members]
    rows = [given.get(_place(member), ()) for member in members]
    return len(set(rows)) > 1 and all(
        len(shape) > 1 and row[:1] == (1,) and shape[:2] == row
        for shape, row in zip(shapes, rows, strict=True)
    )


def _is_one_label(members: Sequence[Member]) -> bool:
    """Whether each microbatch has one whole number: programs whose loss goes through tokens one by one."""
    parts = [member.part.summary() for member in members]
    return all(part.numel == 1 and part.dtype.startswith(("int", "uint")) for part in parts)


def _is_by_itself(members: Sequence[Member], source: RankRecord, phase: str, copies: Copies) -> bool:
    """Whether a tensor is a microbatch's, and no part of what one microbatch of all rows has.

    In forward what differs among microbatches though it has no rows: a sum or a mean over the rows of each,
    which no number tells. So is the gradient of one number of a function: 1 of a sum, 1 / n of a mean. Whole
    numbers of a function that are the same in every microbatch number its rows, from 0, and would go on.
    """
    parts = [member.part.summary() for member in members]
    if phase == "backward":
        return _kind(source) == "api" and parts[0].numel == 1
    if phase != "forward":
        return False
    if any(axis == BATCH for axis, _, _ in copies.differing):
        return True
    return (
        _kind(source) == "api"
        and members[0].part.shape[:1] == (parts[0].numel,)
        and parts[0].dtype.startswith(("int", "uint"))
        and all(alike(parts[0], part) for part in parts[1:])
    )


def _place(member: Member) -> tuple[int, int]:
    return member.part.rank, member.coordinate.get(BATCH, 0)


def _kind(source: RankRecord) -> str:
    """Of its call."""
    view = source.rank.view
    return view.kind[view.record_call[source.row]]


def _placed(layout: Layout, source: RankRecord, phase: str, slot: str) -> Placed:
    of = {"parameter": layout.of_parameter, "api": layout.of_function}.get(_kind(source), layout.of_tensor)
    return of(source.call.name, phase, slot)


def _elsewhere(layout: Layout, source: RankRecord, phase: str, slot: str) -> bool:
    """Whether it is what one pipeline stage hands to the next: nothing of the whole model."""
    place = _placed(layout, source, phase, slot).placements.get(layout.pipeline)
    return isinstance(place, At) and place.stage % layout.num_stages != source.call.stage


def _member(source: RankRecord, read: Reader) -> Member:
    rank, view = source.rank, source.rank.view
    row, call = view.content[source.row], view.record_call[source.row]
    if row is None:
        raise Unfit(MergingCode.RANK_WITHOUT_SUMMARY, view.tables.reason_of(source.row), rank=rank.rank)
    summary, sketched = rank.summary(row)
    kept = rank.stored(row)

    def values() -> Values | None:
        return read(rank.rank, rank.summary_row(row))

    coordinate = dict(rank.coordinate)
    if _kind(source) == "parameter":
        coordinate[BATCH] = source.occurrence
    else:
        for axis in rank.batch_axes:
            coordinate[axis] = 0
        coordinate[BATCH] = source.call.position
    return Member(
        part=RankPart(rank.rank, summary, values if kept else None),
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


def _groups(ranks: Sequence[RankStep]) -> dict[RecordKey, list[RankRecord]]:
    groups: dict[RecordKey, list[RankRecord]] = {}
    for rank in ranks:
        view = rank.view
        seen: dict[tuple[RecordKey, int, int], int] = {}
        last: dict[RecordKey, RankRecord] = {}
        columns = zip(view.record_call, view.phase, view.slot, strict=True)
        for row, (number, phase, slot) in enumerate(columns):
            call = rank.calls[number]
            if call is None:
                continue
            key = RecordKey(call.key, phase, slot)
            own = key, call.position, call.stage
            occurrence = seen.get(own, 0)
            seen[own] = occurrence + 1
            parameter = call.microbatch < 0
            if parameter and (slot in LAST_ONLY or phase == "optimizer"):
                last[key] = RankRecord(rank, row, call, 0)
            elif occurrence == 0 or (parameter and slot == "local"):
                groups.setdefault(key, []).append(RankRecord(rank, row, call, occurrence))
        for key, source in last.items():
            groups.setdefault(key, []).append(source)
    return groups


def _seen_of_some(groups: Mapping[RecordKey, list[RankRecord]]) -> int:
    """Parameters whose gradient was seen as backward left it, where others' were not: a schedule that runs
    parts of backward by itself shows it of those whose backward came whole."""
    whole = sum(phase == "param_grad" and slot == "accumulated" for _, phase, slot in groups)
    received = sum(phase == "param_grad" and slot == "clipped" for _, phase, slot in groups)
    return whole if whole < received else 0


def _order(key: RecordKey, sources: Sequence[RankRecord]) -> tuple[int, ...]:
    """Where a record stands in the step: forward stage by stage, backward the other way, updates last."""
    _, phase, slot = key
    lead = sources[0]
    if phase == "param":
        return 0, 0, 0, 0, lead.row
    if phase == "optimizer" or slot == "clipped":
        return 2, 0, 0, lead.call.stage, lead.row
    backward = phase in ("backward", "param_grad") or lead.call.key.mode == "recompute"
    microbatch = lead.call.microbatch if lead.call.microbatch >= 0 else 1 << 30
    stage = -lead.call.stage if backward else lead.call.stage
    return 1, microbatch, int(backward), stage, lead.row


def _named(source: RankRecord, phase: str, slot: str) -> str:
    name = source.call.name or "(root)"
    return f"{name} {phase} {slot}" if phase != "forward" else f"{name} {slot}"


def copies_reason(copies: Copies) -> Reason:
    """Which copies differ; ``rel_l2`` is the distance of the farthest one, null where it is not known."""
    parts = [
        reason(RecordCode.COPY_DIFFERS, axis=axis, ranks=list(map(str, ranks)), rel_l2=far)
        for axis, ranks, far in copies.differing
    ]
    farthest = max((far for _, _, far in copies.differing if far is not None), default=None)
    return reason(RecordCode.COPIES_DIFFER, *parts, rel_l2=farthest)
