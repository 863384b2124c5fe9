"""The plan of a replay as a process reads it: for every place in a step, which reference values belong there.

``trueup.diagnosing.replay.plan`` writes it: ``plan.json`` and, for each step of each rank, one Parquet file
in which a row is a record of the target's free run that has a partner in the reference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PLAN = "plan.json"

COMPARE = "compare"
"""state of a plan's row: looked at, never overwritten (parameters' gradients, the loss)"""
SILENT = "silent"
"""state of a plan's row: overwritten without a word (a forward run again inside backward)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedRecord:
    """One reference record, and where its values lie; ``chunk`` is None where none were kept."""

    record: int
    use: str
    digest: int | None
    norm: float | None
    dtype: str
    shape: tuple[int, ...]
    chunk: int | None
    tensor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostValues:
    """Values of the reference on the host."""

    data: NDArray[np.uint8]
    """row-major bytes"""
    dtype: str
    shape: tuple[int, ...]


class CallPlan:
    """What the reference holds for one call, by phase and slot; several of one slot are given out in
    order."""

    __slots__ = ("_entries", "_next")

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], list[ForcedRecord]] = {}
        self._next: dict[tuple[str, str], int] = {}

    def add(self, phase: str, slot: str, entry: ForcedRecord) -> None:
        """The next record of this slot."""
        self._entries.setdefault((phase, slot), []).append(entry)

    def peek(self, phase: str, slot: str) -> ForcedRecord | None:
        """What ``take`` would return."""
        found = self._entries.get((phase, slot))
        at = self._next.get((phase, slot), 0)
        return found[at] if found is not None and at < len(found) else None

    def take(self, phase: str, slot: str) -> ForcedRecord | None:
        """The next record of this slot, None when there are no more."""
        entry = self.peek(phase, slot)
        if entry is not None:
            self._next[phase, slot] = self._next.get((phase, slot), 0) + 1
        return entry


class ForcingPlan:
    """The plan of one step of one rank; empty where the folder holds none."""

    def __init__(self, folder: Path, step: int, rank: int) -> None:
        self.places: dict[str, CallPlan] = {}
        self._files: dict[int, _Chunk] = {}
        held = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        found = next((p for p in held["steps"] if p["step"] == step and p["rank"] == rank), None)
        self.known = found is not None
        if found is not None:
            self._values = Path(found["values"])
            self._converted = Path(found["converted"])
            self._read(folder / found["file"])

    def _read(self, path: Path) -> None:
        import pyarrow.parquet as pq

        for row in pq.read_table(path).to_pylist():
            entry = ForcedRecord(
                record=row["reference_record"],
                use=row["use"],
                digest=row["digest"],
                norm=row["norm"],
                dtype=row["dtype"],
                shape=tuple(row["shape"]),
                chunk=row["chunk"],
                tensor=row["tensor"],
            )
            self.places.setdefault(row["place"], CallPlan()).add(row["phase"], row["slot"], entry)

    def values(self, entry: ForcedRecord) -> HostValues | None:
        """The reference's values on the host, None where it kept none.

        Raises:
            OSError: the reference has gone or is damaged.
        """
        if entry.chunk is None or entry.tensor is None:
            return None
        file = self._files.get(entry.chunk)
        if file is None:
            file = self._files[entry.chunk] = _Chunk(self._path(entry.chunk))
        return HostValues(data=file.read(entry.tensor), dtype=entry.dtype, shape=entry.shape)

    def _path(self, chunk: int) -> Path:
        """The reference's own file, or (below 0) one in which its values lie as the target has them."""
        if chunk < 0:
            return self._converted / f"{-chunk}.safetensors"
        return self._values / f"chunk_{chunk:05d}.safetensors"


class _Chunk:
    """A safetensors file as raw bytes: frameworks disagree about which dtypes they can read from one."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            self._header = json.loads(file.read(length))
        self._path, self._start = path, 8 + length

    def read(self, name: str) -> NDArray[np.uint8]:
        """The bytes of one tensor, in memory of their own."""
        first, last = self._header[name]["data_offsets"]
        return np.fromfile(self._path, np.uint8, count=last - first, offset=self._start + first)
