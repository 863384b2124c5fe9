"""What went into a cell and what came out of it, found by content: MindSpore dumps operators alone.

A tensor that an operator inside a cell took, and that an operator outside (or the graph's inputs) gave, equal
in all bits (of statistics alone: in all of three at least), went into the cell; what an operator inside gave
and one outside took came out. Recorded only where there is exactly one such tensor, because the order of
several is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trueup.types.table_rows import RecordRow

FOUND = "found by content: the dump holds the tensors of operators, not of cells"
_FLOWS = ("forward", "collective")
Content = tuple[object, ...]
"""two tensors of equal content are the same one"""


@dataclass(slots=True)
class _Flow:
    """Of one module call."""

    entered: dict[Content, int] = field(default_factory=dict)
    """content -> the record that took it first"""
    left: dict[Content, int] = field(default_factory=dict)
    """content -> the record that gave it"""
    first: int = -1
    last: int = -1
    """rows of its first and last forward record"""


def with_module_records(
    records: list[RecordRow], around: list[tuple[int, ...]], contents: list[Content | None]
) -> list[RecordRow]:
    """``records`` with those of module calls in their places.

    Args:
        records: rows in execution order.
        around: of every call the module calls around it, outermost first; empty for calls that do not count.
        contents: of every summary its content, None where it tells nothing.
    """
    flows: dict[int, _Flow] = {}
    givers: dict[Content, int] = {}
    for row, (call, phase, slot, _, summary, *_) in enumerate(records):
        if phase not in _FLOWS or (not around[call] and slot.startswith("input")):
            continue
        for module in around[call]:
            flow = flows.setdefault(module, _Flow(first=row))
            flow.last = row
        content = None if summary is None else contents[summary]
        if content is None:
            continue
        if slot.startswith("output"):
            givers[content] = row
        elif content in givers:
            _cross(flows, records, around, content, givers[content], row)
    return _interleaved(records, flows)


def _cross(
    flows: dict[int, _Flow],
    records: list[RecordRow],
    around: list[tuple[int, ...]],
    content: Content,
    giver: int,
    taker: int,
) -> None:
    inside_giver, inside_taker = around[records[giver].call], around[records[taker].call]
    for module in inside_taker:
        if module not in inside_giver:
            flows[module].entered.setdefault(content, taker)
    for module in inside_giver:
        if module not in inside_taker:
            flows[module].left.setdefault(content, giver)


def _interleaved(records: list[RecordRow], flows: dict[int, _Flow]) -> list[RecordRow]:
    """Inputs before a module's first record, outermost first; outputs after its last, innermost first."""
    before: dict[int, list[RecordRow]] = {}
    after: dict[int, list[RecordRow]] = {}
    for module, flow in sorted(flows.items()):  # a call's row is smaller than those inside it
        if len(flow.entered) == 1:
            (row,) = flow.entered.values()
            before.setdefault(flow.first, []).append(_record(module, "input.0", records[row]))
        if len(flow.left) == 1:
            (row,) = flow.left.values()
            after.setdefault(flow.last, []).insert(0, _record(module, "output.0", records[row]))
    whole: list[RecordRow] = []
    for row, record in enumerate(records):
        whole += [*before.get(row, ()), record, *after.get(row, ())]
    return whole


def _record(module: int, slot: str, of: RecordRow) -> RecordRow:
    return RecordRow(module, "forward", slot, of.microbatch, of.summary, None, FOUND)
