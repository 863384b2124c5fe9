"""Forwards run again inside backward (activation checkpointing): of which original each is the second run."""

from __future__ import annotations

from typing import Any

from trueup.store import StepTables

Key = tuple[Any, ...]


def originals(tables: StepTables) -> dict[int, int]:
    """Forward records of calls that were run again -> the same records of the original calls.

    Outermost ones are told by their name and the bits of their inputs, those inside them by their place. A
    second run whose original is not found is left out.
    """
    calls = tables.calls.select("parent", "kind", "name", "ordinal", "microbatch", "mode").rows()
    if not any(mode == "recompute" for *_, mode in calls):
        return {}
    records = _forward_records(tables)
    waiting: dict[Key, list[int]] = {}
    inside: dict[tuple[int, str, str, int], int] = {}
    for call, (parent, kind, name, ordinal, microbatch, mode) in enumerate(calls):
        if mode == "train":
            waiting.setdefault((kind, name, microbatch, _inputs(records[call])), []).append(call)
            if parent is not None:
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


def _forward_records(tables: StepTables) -> list[dict[str, tuple[int, Any]]]:
    """For every call slot -> (row of its record, digest)."""
    digests = tables.summaries["digest"].to_list()
    found: list[dict[str, tuple[int, Any]]] = [{} for _ in range(tables.calls.height)]
    for row, (call, phase, slot, summary) in enumerate(
        tables.records.select("call", "phase", "slot", "summary").iter_rows()
    ):
        if phase == "forward":
            found[call][slot] = row, None if summary is None else digests[summary]
    return found


def _inputs(slots: dict[str, tuple[int, Any]]) -> Key:
    return tuple((slot, digest) for slot, (_, digest) in sorted(slots.items()) if slot.startswith("input"))
