"""One step of one rank of one trace, looked up by call, site and record."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from trueup.diagnosing.evidence.facts import NUMBERS, Known
from trueup.errors import TraceError
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import SKETCH_SIZE
from trueup.store import TraceSource, layout
from trueup.store.files import parquet_from_path

_CACHED = 8


class StepIndex:
    """Calls and records of one step on one rank; rows are those of the tables."""

    def __init__(self, source: TraceSource, step: int, rank: int) -> None:
        self.source, self.step, self.rank = source, step, rank
        tables = source.read(step, rank)
        text = [c for c in ("kind", "name", "type", "mode", "arguments") if c in tables.calls.columns]
        calls = tables.calls.with_columns(pl.col(c).cast(pl.String) for c in text)
        self._summaries = tables.summaries
        self._dtypes: list[str] = tables.summaries["dtype"].cast(pl.String).to_list()
        self.facts = source.rank_facts(rank)
        """what the rank says of itself"""
        self.kind: list[str] = calls["kind"].to_list()
        self.name: list[str] = [n or "" for n in calls["name"].to_list()]
        self.type: list[str | None] = calls["type"].to_list()
        self.mode: list[str | None] = calls["mode"].to_list()
        self.ordinal: list[int] = calls["ordinal"].to_list()
        self.microbatch: list[int | None] = calls["microbatch"].to_list()
        self.arguments: list[str | None] = calls["arguments"].to_list()
        self.parent: list[int] = calls["parent"].fill_null(-1).to_list()
        records = tables.records.with_columns(pl.col(c).cast(pl.String) for c in ("phase", "slot", "reason"))
        self.record_call: list[int] = records["call"].fill_null(-1).to_list()
        self.phase: list[str] = records["phase"].to_list()
        self.slot: list[str] = records["slot"].to_list()
        self.record_microbatch: list[int] = records["microbatch"].fill_null(0).to_list()
        self.requires_grad: list[bool | None] = records["requires_grad"].to_list()
        self.reason: list[str | None] = records["reason"].to_list()
        self._summary: list[int | None] = records["summary"].to_list()
        self._of_call = _grouped(self.record_call, len(self.name))
        self._children = _grouped(self.parent, len(self.name))
        self._by_name: dict[tuple[str, str], list[int]] = {}
        for call, key in enumerate(zip(self.kind, self.name, strict=True)):
            self._by_name.setdefault(key, []).append(call)
        self._forced = _forced_records(source, step, rank)

    def children(self, call: int) -> list[int]:
        """Calls directly inside a call, in order; -1 gives those at top level."""
        return self._children.get(call, [])

    def records(self, call: int, phase: str | None = None) -> list[int]:
        """Records of a call, in order."""
        return [r for r in self._of_call.get(call, []) if phase is None or self.phase[r] == phase]

    def record(self, call: int, phase: str, slot: str, microbatch: int | None = None) -> int | None:
        """The record at a slot of a call, the last one where microbatches are not told apart."""
        found = [
            r
            for r in self.records(call, phase)
            if self.slot[r] == slot and microbatch in (None, self.record_microbatch[r])
        ]
        return found[-1] if found else None

    def path(self, call: int, *, microbatch: bool = True) -> tuple[Any, ...]:
        """A call's place: what it and its ancestors are, outermost first."""
        found: list[Any] = []
        at = call
        while at >= 0:
            found.append((self.kind[at], self.name[at], self.ordinal[at], self.mode[at]))
            if self.parent[at] < 0 and microbatch and self.kind[at] != "parameter":
                found.append(self.microbatch[at])
            at = self.parent[at]
        return tuple(reversed(found))

    def same_place(self, other: StepIndex, call: int, *, microbatch: bool = True) -> list[int]:
        """Calls here at the place a call has in another index."""
        wanted = other.path(call, microbatch=microbatch)
        alike = self._by_name.get((other.kind[call], other.name[call]), [])
        return [c for c in alike if self.path(c, microbatch=microbatch) == wanted]

    def named(self, kind: str, name: str) -> list[int]:
        """Calls of a kind and name, in order."""
        return self._by_name.get((kind, name), [])

    def parameter_call(self, fqn: str) -> int | None:
        """The call that stands for a parameter."""
        found = self._by_name.get(("parameter", fqn), [])
        return found[0] if found else None

    def calls_of_kind(self, kind: str) -> Iterator[int]:
        """Calls of one kind, in order."""
        return (c for c, k in enumerate(self.kind) if k == kind)

    def arguments_of(self, call: int) -> dict[str, Any]:
        """Plain arguments of a call, slot -> value; empty where there are none."""
        text = self.arguments[call]
        try:
            found = json.loads(text) if text else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def is_forced(self, record: int) -> bool:
        """Whether a replay saw to it that the reference's value stands here."""
        return record in self._forced

    def known(self, record: int, name: str | None = None) -> Known | None:
        """The tensor of a record, None where it has no summary."""
        number = self._summary[record]
        if number is None:
            return None
        call = self.record_call[record]
        label = f"{self.name[call] or '(root)'}, {self.slot[record]}" if call >= 0 else self.slot[record]
        return self._read(number, name or label)

    def dtype(self, record: int) -> str | None:
        """Element type of a record's tensor."""
        number = self._summary[record]
        return None if number is None else self._dtypes[number]

    def _read(self, number: int, name: str) -> Known:
        row = self._summaries.row(number, named=True)
        blob: bytes = row.get("sketch") or b""
        whole = len(blob) == 4 * SKETCH_SIZE
        shape = tuple(row["shape"] or ())
        dtype = str(row["dtype"])

        def raw() -> np.ndarray[Any, Any] | None:
            stored = self.source.tensor(self.step, self.rank, row)
            if stored is None or stored.dtype not in DTYPES:
                return None
            flat = stored.data.view(np.dtype(DTYPES[stored.dtype].storage))
            return flat.reshape(stored.shape)

        return Known(
            name,
            dtype=dtype,
            shape=shape,
            statistics={n: row.get(n) for n in NUMBERS},
            digest=row.get("digest"),
            sketch=np.frombuffer(blob, "<f4").astype(np.float64) if whole else None,
            raw=raw,
        )


_recent: OrderedDict[tuple[int, int, int], StepIndex] = OrderedDict()
"""An index holds its source, so the source's id names it for as long as the entry lives."""


def step_index(source: TraceSource, step: int, rank: int) -> StepIndex:
    """The index of one step on one rank, the last few kept.

    Raises:
        TraceError: the step or rank is not there.
    """
    key = (id(source), step, rank)
    found = _recent.get(key)
    if found is None or found.source is not source:
        found = _recent[key] = StepIndex(source, step, rank)
    _recent.move_to_end(key)
    while len(_recent) > _CACHED:
        _recent.popitem(last=False)
    return found


def index_if_there(source: TraceSource, step: int, rank: int) -> StepIndex | None:
    """The same, None where the trace has no such step and rank or it cannot be read."""
    if rank not in source.steps().get(step, []):
        return None
    try:
        return step_index(source, step, rank)
    except TraceError:
        return None


def _grouped(parents: list[int], num: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row, parent in enumerate(parents):
        found.setdefault(parent, []).append(row)
    return found


def _forced_records(source: TraceSource, step: int, rank: int) -> frozenset[int]:
    """Records a replay found equal or replaced, from ``forced.parquet`` where there is one."""
    file = layout.rank_dir(source.path, step, rank) / "forced.parquet"
    if not file.is_file():
        return frozenset()
    try:
        table = pl.read_parquet(parquet_from_path(file), columns=["record", "state"], glob=False)
    except (OSError, pl.exceptions.PolarsError):
        return frozenset()
    states = table.with_columns(pl.col("state").cast(pl.String))
    held = states.filter(pl.col("state").is_in(["equal", "replaced"]))["record"]
    return frozenset(r for r in held.to_list() if r is not None)
