"""Forwards run again inside backward (activation checkpointing), each with the original that it repeats."""

from __future__ import annotations

from trueup.store import StepView

Key = tuple[object, ...]


def originals(view: StepView) -> dict[int, int]:
    """Forward records of calls that were run again -> the same records of the original calls.

    Outermost ones are told by their name and the bits of their inputs, those inside them by their place. A
    second run whose original is not found is left out.
    """
    if "recompute" not in view.mode:
        return {}
    columns = (view.parent, view.kind, view.name, view.ordinal, view.microbatch, view.mode)
    calls = list(zip(*columns, strict=True))
    records = _forward_records(view)
    waiting: dict[Key, list[int]] = {}
    inside: dict[tuple[int, str, str, int], int] = {}
    for call, (parent, kind, name, ordinal, microbatch, mode) in enumerate(calls):
        if mode == "train":
            waiting.setdefault((kind, name, microbatch, _inputs(records[call])), []).append(call)
            if parent >= 0:
                inside[parent, kind, name, ordinal] = call
    first_run: dict[int, int] = {}
    for call, (parent, kind, name, ordinal, microbatch, mode) in enumerate(calls):
        if mode != "recompute":
            continue
        if parent in first_run:
            found = inside.get((first_run[parent], kind, name, ordinal))
        else:
            same = waiting.get((kind, name, microbatch, _inputs(records[call])))
            found = same.pop(0) if same else None
        if found is not None:
            first_run[call] = found
    return {
        row: records[first][slot][0]
        for call, first in first_run.items()
        for slot, (row, _) in records[call].items()
        if slot in records[first]
    }


def _forward_records(view: StepView) -> list[dict[str, tuple[int, int | None]]]:
    """For every call slot -> (row of its record, digest)."""
    digests = view.tables.summaries["digest"].to_list()
    found: list[dict[str, tuple[int, int | None]]] = [{} for _ in view.kind]
    columns = (view.record_call, view.phase, view.slot, view.content)
    for row, (call, phase, slot, summary) in enumerate(zip(*columns, strict=True)):
        if phase == "forward":
            found[call][slot] = row, None if summary is None else digests[summary]
    return found


def _inputs(slots: dict[str, tuple[int, int | None]]) -> Key:
    return tuple((slot, digest) for slot, (_, digest) in sorted(slots.items()) if slot.startswith("input"))
