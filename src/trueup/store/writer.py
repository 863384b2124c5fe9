"""Writes a trace: each rank its own files, each step by one rename."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trueup.numerics.summary import HAS_CRC32, HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS, SUMMARY_DTYPE
from trueup.store import layout, schema
from trueup.store.tensors import HEADER_BYTES, ChunkWriter
from trueup.types.arrays import Array

SummaryKind = tuple[str, tuple[int, ...], str, "str | None"]
"""dtype, shape, device, placement of a tensor: few are distinct"""


@dataclass(slots=True)
class StepColumns:
    """One step of one rank, in columns as capture collects them; row number is execution order.

    ``summaries`` is a structured array of SUMMARY_DTYPE, one row a distinct tensor content; ``summary_kind``
    runs beside it. Names are plain strings, interned into dictionaries on writing.
    """

    calls: Mapping[str, Sequence[object]] = field(
        default_factory=lambda: {f.name: [] for f in schema.CALLS if f.name != "call"}
    )
    records: Mapping[str, Sequence[object]] = field(
        default_factory=lambda: {f.name: [] for f in schema.RECORDS}
    )
    summaries: Array = field(default_factory=lambda: np.zeros(0, SUMMARY_DTYPE))
    kinds: list[SummaryKind] = field(default_factory=list)
    summary_kind: list[int] | Array = field(default_factory=list)
    """row -> its kind, by number"""
    summary_tensor: dict[int, tuple[int, str]] = field(default_factory=dict)
    """row -> (chunk, name) of the stored values"""
    stacks: dict[int, list[str]] = field(default_factory=dict)
    forced: Mapping[str, Sequence[object]] | None = None
    """of a replay alone"""

    def add_kind(
        self, dtype: str, shape: tuple[int, ...], *, device: str = "cpu", placement: str | None = None
    ) -> None:
        """What the next row is, for those who make a step row by row."""
        assert isinstance(self.summary_kind, list)
        self.summary_kind.append(len(self.kinds))
        self.kinds.append((dtype, shape, device, placement))


class RunWriter:
    """One rank's hand on the folder of a run."""

    def __init__(
        self,
        root: Path,
        *,
        rank: int,
        max_bytes: int | None = None,
        progress: Callable[[int, int, int], None] | None = None,
    ) -> None:
        """``max_bytes``: of all steps of this rank, with their values; None: no limit. ``progress``: told of
        a step that takes long: its number, bytes of values on disk, and bytes that still wait."""
        self.root = root
        self.rank = rank
        self._max_bytes = max_bytes
        self._progress = progress
        self._value_bytes = self._table_bytes = 0
        self.left_out_bytes = 0
        """of values that there was no room for"""
        self.waited_seconds = 0.0
        """how long the program waited for the disk"""
        self._under_way: dict[int, _UnderWay] = {}
        self._written: dict[str, tuple[object, Path]] = {}
        """table -> what the last whole step holds in it, and where"""
        self._known: dict[str, _Known] = {name: {} for name in _TABLES}

    def begin_run(self, manifest: Mapping[str, object] | None) -> None:
        """Create the folder, and write ``manifest.json`` when this rank is the one that does.

        Raises:
            OSError: the folder cannot be made or written.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        if manifest is not None:
            write_json(self.root / layout.MANIFEST, {"schema_version": schema.SCHEMA_VERSION, **manifest})

    def add_to_manifest(self, more: Mapping[str, object], *, first: bool) -> None:
        """Add what came out later to ``manifest.json``, where this rank is the ``first`` and has written it.

        Raises:
            OSError: it cannot be written.
        """
        path = self.root / layout.MANIFEST
        if first and path.is_file():
            write_json(path, {**json.loads(path.read_text(encoding="utf-8")), **more})

    def clear(self, world_size: int) -> None:
        """Remove what an earlier run left under this rank; rank 0 also removes ranks this run has not.

        Raises:
            OSError: it cannot be removed.
        """
        gone = layout.ranks(self.root) if self.rank == 0 else set()
        for rank in {self.rank, *(r for r in gone if r >= world_size)}:
            for path in layout.rank_paths(self.root, rank):
                if path.is_dir():
                    shutil.rmtree(path)
                    with contextlib.suppress(OSError):
                        path.parent.rmdir()
                else:
                    path.unlink(missing_ok=True)

    def write_rank(self, facts: Mapping[str, object]) -> None:
        """Replace what this rank says of itself (coordinate, parameter table, limits, failures)."""
        write_json(layout.rank_file(self.root, self.rank), facts)

    def write_code(self, code: Mapping[str, object]) -> None:
        """What the program's functions of this rank are."""
        path = layout.code_file(self.root, self.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps(code).encode(), 3, mtime=0))

    def append_scalars(self, scalars: Mapping[str, object]) -> None:
        """Append one line and flush it."""
        path = layout.scalars_file(self.root, self.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(scalars, allow_nan=True) + "\n")

    @property
    def is_full(self) -> bool:
        """Whether the steps have reached ``max_bytes``."""
        return self._max_bytes is not None and self._value_bytes + self._table_bytes >= self._max_bytes

    def has_room(self, step: int, num_bytes: int) -> bool:
        """Whether so many bytes of values fit; they are then counted."""
        more = num_bytes + (0 if step in self._under_way and self._under_way[step].chunks else HEADER_BYTES)
        if self._max_bytes is not None and self._value_bytes + self._table_bytes + more > self._max_bytes:
            self.left_out_bytes += num_bytes
            return False
        self._value_bytes += more
        return True

    def chunks(self, step: int) -> ChunkWriter:
        """Where the values of a step under way go."""
        known = self._begun(step)
        if known.chunks is None:
            tell = None if self._progress is None else partial(self._progress, step)
            known.chunks = ChunkWriter(known.folder / "tensors", tell)
        return known.chunks

    def finish_step(self, step: int, columns: StepColumns, *, program_waits: bool = True) -> Path:
        """Write the tables, then make the step appear by one rename; returns its folder. ``program_waits``:
        until that is done.

        Raises:
            OSError: disk full, no permission; what was written of this step is removed, earlier steps stay.
        """
        try:
            known = self._begun(step)
            if known.chunks is not None:
                start = time.monotonic()
                known.chunks.close()
                closing = time.monotonic() - start if program_waits else 0.0
                self.waited_seconds += known.chunks.waited_seconds + closing
            final = layout.rank_dir(self.root, step, self.rank)
            self._write_tables(columns, known.folder, final)
            self._table_bytes += sum(path.stat().st_size for path in known.folder.glob("*.parquet"))
            if final.exists():
                shutil.rmtree(final)
            known.folder.rename(final)
        except BaseException:
            self.abandon_step(step)
            raise
        del self._under_way[step]
        return final

    def _write_tables(self, columns: StepColumns, folder: Path, final: Path) -> None:
        """All but values are often those of the step before: then its file is linked, not written again."""
        for name, build in _TABLES.items():
            path = folder / f"{name}.parquet"
            content = getattr(columns, name)
            if content is None:
                continue
            if name not in _MAY_REPEAT:
                write_table(build(columns, self._known[name]), path)
                continue
            before, there = self._written.get(name, (None, path))
            if before != content or not _linked(there, path):
                write_table(build(columns, self._known[name]), path)
            self._written[name] = content, final / path.name

    def abandon_step(self, step: int | None = None) -> None:
        """Forget a step under way, or all, and remove what it left."""
        for number in list(self._under_way) if step is None else [step]:
            known = self._under_way.pop(number, None)
            if known is None:
                continue
            if known.chunks is not None:
                known.chunks.abandon()
            shutil.rmtree(known.folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                known.folder.parent.rmdir()

    def _begun(self, step: int) -> _UnderWay:
        known = self._under_way.get(step)
        if known is None:
            final = layout.rank_dir(self.root, step, self.rank)
            folder = final.with_name(f"{final.name}.writing-{os.getpid()}")
            folder.mkdir(parents=True, exist_ok=True)
            known = self._under_way[step] = _UnderWay(folder)
        return known


@dataclass(slots=True)
class _UnderWay:
    """A step that is not whole yet."""

    folder: Path
    chunks: ChunkWriter | None = None


def write_table(table: pa.Table, path: Path) -> None:
    """Write one table with dictionaries for every column that repeats.

    LZ4, not zstd: it takes no longer than none at all, and comes near zstd's size without the megabyte of
    working memory that zstd asks for at every column, which makes the program's own memory fault anew.
    """
    pq.write_table(
        table,
        path,
        compression="lz4",
        use_dictionary=[f.name for f in table.schema if pa.types.is_dictionary(f.type)],
        write_statistics=False,
        store_schema=True,
    )


def write_text(path: Path, text: str) -> Path:
    """Replace ``path`` by one rename, so that a reader sees the old or the new file, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.writing-{os.getpid()}")
    temporary.write_text(text, encoding="utf-8", errors="replace")
    return temporary.replace(path)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Likewise; what JSON does not know is written as text."""
    write_text(path, json.dumps(content, default=str))


def _linked(there: Path, path: Path) -> bool:
    """Whether ``path`` is now the same file as ``there``; some file systems cannot do that."""
    try:
        os.link(there, path)
    except OSError:
        return False
    return True


_Known = dict[str, tuple[object, pa.Array]]
"""column -> what it last held, as capture collected it and as Arrow holds it"""


def _calls_table(columns: StepColumns, known: _Known) -> pa.Table:
    return _table({"call": list(range(len(columns.calls["name"]))), **columns.calls}, schema.CALLS, known)


def _stacks_table(columns: StepColumns, known: _Known) -> pa.Table:
    stacks = columns.stacks
    return _table({"stack": list(stacks), "frames": list(stacks.values())}, schema.STACKS, known)


def _table(columns: Mapping[str, Sequence[object]], wanted: pa.Schema, known: _Known) -> pa.Table:
    """Most columns hold what they held a step ago; comparing is many times quicker than building anew."""
    for column in wanted:
        values = columns[column.name]
        if column.name not in known or known[column.name][0] != values:
            known[column.name] = values, _array(values, column.type)
    return pa.Table.from_arrays([known[column.name][1] for column in wanted], schema=wanted)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        with contextlib.suppress(UnicodeEncodeError):
            return pa.array(values, pa.string()).dictionary_encode()
        index: dict[str | None, int] = {}
        codes = [index.setdefault(v, len(index)) for v in values]
        words: list[str | None] = list(index)
        mask = None
        if None in index:
            mask = np.asarray(codes, dtype=np.int32) == index[None]
            words[index[None]] = ""
        clean = pa.array([_storable(w) for w in words], pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(np.asarray(codes, np.int32), mask=mask), clean)
    if pa.types.is_list(kind):
        return pa.array([[_storable(word) for word in words] for words in values], kind)
    return pa.array(values, kind)


def _storable(word: str | None) -> str:
    """Names may hold lone surrogates (non-UTF-8 file names); they are kept readable, escaped."""
    return (word or "").encode("utf-8", "backslashreplace").decode("utf-8")


def _summaries_table(columns: StepColumns, known: _Known) -> pa.Table:
    rows = columns.summaries
    flags = rows["flags"]
    num = len(rows)
    chunk = np.zeros(num, np.int32)
    stored = np.zeros(num, bool)
    names: list[str | None] = [None] * num
    for row, (number, name) in columns.summary_tensor.items():
        chunk[row], stored[row], names[row] = number, True, name
    arrays: dict[str, pa.Array] = {
        **_columns_of_kinds(columns),
        "chunk": pa.array(chunk, mask=~stored),
        "tensor": pa.array(names, pa.string()),
    }
    no_statistics = (flags & HAS_STATISTICS) == 0
    for name in SUMMARY_DTYPE.names or ():
        if name in ("flags", "sketch"):
            continue
        column = np.ascontiguousarray(rows[name])
        if name == "numel":
            missing = None
        elif name == "digest":
            missing = (flags & HAS_DIGEST) == 0
        elif name == "crc32":
            missing = (flags & HAS_CRC32) == 0
        elif column.dtype.kind == "f":
            missing = no_statistics | np.isnan(column)
        else:
            missing = no_statistics
        arrays[name] = pa.array(column, mask=missing)
    arrays["sketch"] = _sketches(rows, (flags & HAS_SKETCH) == 0)
    return pa.Table.from_arrays([arrays[f.name] for f in schema.SUMMARIES], schema=schema.SUMMARIES)


def _columns_of_kinds(columns: StepColumns) -> dict[str, pa.Array]:
    rows = pa.array(np.asarray(columns.summary_kind, np.int32))
    names = ("dtype", "shape", "device", "placement")
    words = zip(*columns.kinds, strict=True) if columns.kinds else [()] * len(names)
    found = {}
    for name, values in zip(names, words, strict=True):
        kind = schema.SUMMARIES.field(name).type
        found[name] = (pa.array(values, kind) if name == "shape" else _array(values, kind)).take(rows)
    return found


def _sketches(rows: Array, missing: Array) -> pa.Array:
    kind = schema.SUMMARIES.field("sketch").type
    if missing.all():
        return pa.nulls(len(rows), kind)
    raw = np.ascontiguousarray(rows["sketch"])
    validity = pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes()) if missing.any() else None
    return pa.Array.from_buffers(kind, len(rows), [validity, pa.py_buffer(raw)])


_TABLES: dict[str, Callable[[StepColumns, _Known], pa.Table]] = {
    "calls": _calls_table,
    "records": lambda columns, known: _table(columns.records, schema.RECORDS, known),
    "summaries": _summaries_table,
    "stacks": _stacks_table,
    "forced": lambda columns, known: _table(columns.forced or {}, schema.FORCED, {}),
}
"""field of ``StepColumns`` -> its table; a field that is None has none"""

_MAY_REPEAT = ("calls", "records", "stacks")
