"""Reads a trace back as tables, one step of one rank at a time, so that memory never grows with the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import polars as pl

from trueup.errors import TraceError
from trueup.numerics.dtypes import DTYPES
from trueup.store import layout, schema
from trueup.store.checked import checked, object_from_cell
from trueup.store.files import object_from_json, refuse_irregular, text_from_file
from trueup.store.gaps import Gap
from trueup.store.left_free import code_of_cell
from trueup.store.parquet import frame_from_parquet
from trueup.store.tensors import ChunkReader
from trueup.store.visible import with_visible_norms
from trueup.types.arrays import Bytes
from trueup.types.reason import Reason, given
from trueup.types.trace import (
    ArgumentsCell,
    CutCell,
    DistributedCell,
    Manifest,
    RankFacts,
    ScalarLine,
    SummaryRow,
)

if TYPE_CHECKING:
    import pyarrow as pa

_SCALARS_LOST = "loss, gradient norm, learning rate and batches of such steps are not compared"
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Values of one tensor as raw bytes: ``data`` is uint8 of shape (nbytes,), row-major, of ``dtype``."""

    dtype: str
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """One step of one rank: the tables of docs/trace-format.md. Row number is execution order.

    ``summaries`` has a leading ``summary`` column, the number ``records.summary`` refers to; norms are those
    of visible elements (``store.visible``). ``gaps`` tell what the source of a trace never holds; with
    ``coarse_statistics`` its means and norms are sums in float32 that are then rounded to the tensor's dtype.
    ``reasons`` are conclusions about records, by their row; text that capture wrote about a record is in the
    column ``reason``.
    """

    step: int
    rank: int
    calls: pl.DataFrame
    records: pl.DataFrame
    summaries: pl.DataFrame
    stacks: pl.DataFrame
    gaps: tuple[Gap, ...] = ()
    coarse_statistics: bool = False
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    averages: StepTables | None = None
    """records of averaged copies of the weights, which are no part of the step's calls"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "summaries", with_visible_norms(self.summaries))

    def summary_row(self, row: int) -> SummaryRow:
        """One row of ``summaries`` by its columns."""
        return cast(SummaryRow, self.summaries.row(row, named=True))

    def reason_of(self, record: int) -> Reason | None:
        """What is known of a record beside its summary."""
        known = self.reasons.get(record)
        if known is None and self.records["reason"][record]:
            return given(str(self.records["reason"][record]))
        return known


class TraceSource(Protocol):
    """What comparison needs of a trace, whoever wrote it."""

    @property
    def path(self) -> Path:
        """The file or folder it was opened from."""

    @property
    def manifest(self) -> Manifest:
        """Facts of the run: framework, versions, command, level, task, world size."""

    def steps(self) -> dict[int, list[int]]:
        """Whole steps, ascending, with the ranks each one has."""

    def read(self, step: int, rank: int) -> StepTables:
        """The tables of one step of one rank."""

    def tensor(self, step: int, rank: int, summary: SummaryRow) -> StoredTensor | None:
        """The stored values of one row of ``summaries``, or None where only its summary was kept."""

    def scalars(self, rank: int) -> list[ScalarLine]:
        """Per-step scalars of one rank, oldest first."""

    def rank_facts(self, rank: int) -> RankFacts:
        """What one rank says of itself; empty where the source keeps no such thing."""

    def missing(self, rank: int) -> list[str]:
        """Sentences on what of one rank should be here and is not, or cannot be read, and what therefore
        cannot be compared."""


class Trace:
    """A trace written by trueup.

    Example:
        >>> trace = Trace(Path("runs/reference"))          # doctest: +SKIP
        >>> trace.read(step=0, rank=0).records.height      # doctest: +SKIP
        956

    Raises:
        TraceError: no such folder, not a trace, of a newer version, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = _read_manifest(path)
        self._chunks: dict[int, dict[int, ChunkReader]] = {}
        """of the steps last asked for, by rank"""
        self._steps: dict[int, list[int]] | None = None
        self._facts: dict[int, RankFacts] = {}
        """of the ranks last asked for"""

    def steps(self) -> dict[int, list[int]]:
        """Whole steps, ascending, with the ranks each one has: those that were there when first asked for,
        whatever a run that is still going adds."""
        if self._steps is None:
            self._steps = layout.whole_steps(self.path)
        return self._steps

    def read(self, step: int, rank: int) -> StepTables:
        """The tables of one step of one rank.

        Raises:
            TraceError: the step or rank is not there, or a table cannot be read.
        """
        folder = layout.rank_dir(self.path, step, rank)
        if not folder.is_dir():
            there = dict(self.steps())
            raise TraceError(
                f"{self.path} has no step {step} of rank {rank}; it has {_describe_steps(there)}"
            )
        frames = {name: _read_table(folder / f"{name}.parquet", name) for name in schema.TABLES}
        _refuse_outside(folder, frames)
        _refuse_cells(folder, frames)
        frames["summaries"] = frames["summaries"].with_row_index("summary").cast({"summary": pl.Int32})
        return _without_averages(StepTables(step=step, rank=rank, **frames))  # type: ignore[arg-type]

    def forced(self, step: int, rank: int) -> pl.DataFrame:
        """What a replay put in place of the program's values; ``reason`` holds values of ``LeftFree``.

        Raises:
            TraceError: it is no replay, or the step or rank is not there.
        """
        path = layout.rank_dir(self.path, step, rank) / "forced.parquet"
        if not path.exists():
            raise TraceError(
                f"{self.path} holds no replay of step {step} of rank {rank}; "
                "give the folder that trueup replay -o FOLDER wrote"
            )
        frame = _checked(_frame(path), path, "forced", schema.FORCED)
        cells = frame["reason"].cast(pl.String)
        codes = {cell: code_of_cell(cell) for cell in cells.unique().drop_nulls().to_list()}
        return frame.with_columns(cells.replace_strict(codes, default=None, return_dtype=pl.String))

    def tensor(self, step: int, rank: int, summary: SummaryRow) -> StoredTensor | None:
        """The stored values of one row of ``summaries``, mapped, or None where only its summary was kept."""
        name, chunk = summary.get("tensor"), summary.get("chunk")
        if name is None or chunk is None:
            return None
        if step not in self._chunks:
            while len(self._chunks) >= _STEPS_MAPPED:
                del self._chunks[next(iter(self._chunks))]
            self._chunks[step] = {}
        readers = self._chunks[step]
        if rank not in readers:
            readers[rank] = ChunkReader(layout.rank_dir(self.path, step, rank) / "tensors")
        data = readers[rank].raw(chunk, name)
        shape, dtype = tuple(summary["shape"]), summary["dtype"]
        if dtype not in DTYPES or data.size != math.prod(shape) * DTYPES[dtype].itemsize:
            folder = layout.rank_dir(self.path, step, rank)
            raise TraceError(
                f"{folder}: tensor {name} of chunk {chunk} has {data.size} bytes, expected {dtype} "
                f"{list(shape)}; {_LEAVE_OUT}"
            )
        return StoredTensor(dtype=dtype, shape=shape, data=data)

    def scalars(self, rank: int) -> list[ScalarLine]:
        """Per-step scalars, oldest first; lines that are no JSON or name no step are left out, and
        ``missing`` counts them.

        Raises:
            TraceError: the file is no regular one, or a line is JSON of another kind.
        """
        return self._scalar_lines(rank)[0]

    def rank_facts(self, rank: int) -> RankFacts:
        """What one rank says of itself: coordinate, parameter table, limits, failures; empty where the file
        is not there or is no JSON, which ``missing`` says.

        Raises:
            TraceError: the file is no regular one, or JSON of another kind.
        """
        if rank not in self._facts:
            while len(self._facts) >= _RANKS_KEPT:
                self._facts.pop(next(iter(self._facts)), None)  # another thread may have
            self._facts[rank] = self._read_facts(rank)
        return self._facts[rank]

    def _read_facts(self, rank: int) -> RankFacts:
        path = layout.rank_file(self.path, rank)
        try:
            return checked(object_from_json(text_from_file(path), str(path)), RankFacts, str(path))
        except (OSError, ValueError):
            return {}

    def missing(self, rank: int) -> list[str]:
        """What of one rank is not there or cannot be read, and what therefore cannot be compared. The half of
        a last line that a killed run leaves is none of it.

        Raises:
            TraceError: as ``scalars`` and ``rank_facts``.
        """
        steps = [step for step, ranks in self.steps().items() if rank in ranks]
        return [*self._missing_facts(rank), *self._missing_scalars(rank, steps)] if steps else []

    def _missing_facts(self, rank: int) -> list[str]:
        path = layout.rank_file(self.path, rank)
        if self.rank_facts(rank):
            return []
        what = "cannot be read" if path.exists() else "is not there"
        return [
            f"{_below(path)} {what}: the settings of modules and optimizers, which parameters share a "
            "tensor, and failures of capture are not known, and are not compared"
        ]

    def _missing_scalars(self, rank: int, steps: list[int]) -> list[str]:
        path = layout.scalars_file(self.path, rank)
        lines, garbage = self._scalar_lines(rank)
        held = {line["step"] for line in lines}
        lost = [step for step in steps if step not in held]
        if not lost and not garbage:
            return []
        if not path.exists():
            return [f"{_below(path)} is not there: {_SCALARS_LOST}"]
        parts = [f"{garbage} of its lines cannot be read"] if garbage else []
        if lost:
            some = ", ".join(map(str, lost[:_MOST_NAMED])) + (" and others" if lost[_MOST_NAMED:] else "")
            parts.append(f"it has no line of step {some}")
        return [f"{_below(path)}: {', '.join(parts)}: {_SCALARS_LOST}"]

    def _scalar_lines(self, rank: int) -> tuple[list[ScalarLine], int]:
        """The lines that can be read, and how many cannot; a last line without its end is not counted."""
        path = layout.scalars_file(self.path, rank)
        try:
            text = text_from_file(path)
        except OSError:
            return [], int(path.exists())
        lines, garbage = [], 0
        num_ended = text.count("\n")
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            found = scalar_line(line, f"{path}, line {number},")
            if found is not None:
                lines.append(found)
            else:
                garbage += number <= num_ended
        return lines, garbage


def _without_averages(tables: StepTables) -> StepTables:
    """Averaged weights are recorded last in a step, under calls of their own: taken off the end of both
    tables."""
    kinds = tables.calls["kind"].cast(pl.String) == "average"
    if not kinds.any():
        return tables
    phases = tables.records["phase"].cast(pl.String) == "average"
    averages = replace(tables, records=tables.records.filter(phases))
    calls = tables.calls
    if int(kinds.arg_max() or 0) == calls.height - int(kinds.sum()):
        calls = calls.filter(~kinds)
    return replace(tables, calls=calls, records=tables.records.filter(~phases), averages=averages)


def scalar_line(line: str, where: str) -> ScalarLine | None:
    """One line of scalars; None where it is no JSON, names no step, or has a value of another type.

    Raises:
        TraceError: it is JSON of another kind than an object.
    """
    try:
        found = object_from_json(line, where)
    except ValueError:
        return None
    try:
        return checked(found, ScalarLine, where) if "step" in found else None
    except TraceError:
        return None


def _below(path: Path) -> str:
    """A file as it lies in its trace."""
    return f"{path.parent.name}/{path.name}"


def _read_manifest(path: Path) -> Manifest:
    if not path.exists():
        raise TraceError(f"no such trace: {path}. Give the folder that 'trueup capture -o FOLDER' wrote.")
    file = path / layout.MANIFEST
    try:
        refuse_irregular(file)
        manifest = object_from_json(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        raise TraceError(f"{path} is not a trueup trace: it has no {layout.MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{file} cannot be read: {error}") from error
    version = manifest.get("schema_version")
    if version != schema.SCHEMA_VERSION:
        raise TraceError(
            f"{file} is of schema version {version!r}, this trueup reads {schema.SCHEMA_VERSION}. "
            "Use the trueup that wrote it, or capture again."
        )
    return checked(manifest, Manifest, str(file))


_STEPS_MAPPED = 2
"""an update is read beside the state that the step before left"""
_RANKS_KEPT = 16
"""of which the facts are kept once read: those of a large model take a second to read"""
_LEAVE_OUT = "the step is damaged, leave it out with --steps"
_ALWAYS = ("call", "kind", "name", "ordinal", "mode")
"""what every call has"""


def _refuse_outside(folder: Path, frames: Mapping[str, pl.DataFrame]) -> None:
    """Numbers that point from one table into another point to rows that are there; nothing lacks a name."""
    for table, columns in (("records", ("call", "phase", "slot")), ("calls", _ALWAYS)):
        for column in columns:
            if lacking := frames[table][column].null_count():
                raise TraceError(f"{folder / table}.parquet: {lacking} rows without {column}; {_LEAVE_OUT}")
    calls = frames["calls"]
    if not (calls["call"] == pl.int_range(calls.height, eager=True)).all():
        raise TraceError(f"{folder / 'calls'}.parquet: the calls are not numbered from 0; {_LEAVE_OUT}")
    for table, column, other in (
        ("records", "call", "calls"),
        ("records", "summary", "summaries"),
        ("calls", "parent", "calls"),
    ):
        held = frames[table][column].drop_nulls().to_numpy()
        if len(held) and not 0 <= held.min() <= held.max() < frames[other].height:
            raise TraceError(
                f"{folder / table}.parquet: {column} {held.min()} to {held.max()}, but {other}.parquet has "
                f"{frames[other].height} rows; {_LEAVE_OUT}"
            )


def _refuse_cells(folder: Path, frames: Mapping[str, pl.DataFrame]) -> None:
    """Cells that hold JSON hold what capture writes there."""
    for text in _distinct(frames["calls"]["arguments"]):
        object_from_cell(text, ArgumentsCell, f"{folder / 'calls.parquet'}, arguments", remedy=_LEAVE_OUT)
    for text in _distinct(frames["summaries"]["placement"]):
        kind = DistributedCell if "global_shape" in text else CutCell
        object_from_cell(text, kind, f"{folder / 'summaries.parquet'}, placement", remedy=_LEAVE_OUT)


def _distinct(column: pl.Series) -> list[str]:
    return [str(one) for one in column.unique().to_list() if one is not None]


def _read_table(path: Path, name: str) -> pl.DataFrame:
    return _checked(_frame(path), path, name, schema.TABLES[name])


def _frame(path: Path) -> pl.DataFrame:
    return frame_from_parquet(path, remedy=_LEAVE_OUT)


def _checked(frame: pl.DataFrame, path: Path, name: str, wanted: pa.Schema) -> pl.DataFrame:
    missing = [f.name for f in wanted if f.name not in frame.columns]
    if missing:
        raise TraceError(f"{path} lacks the columns {missing}: it is no {name} table of a version-1 trace")
    return frame


def _describe_steps(steps: dict[int, list[int]]) -> str:
    if not steps:
        return "no whole step"
    first, last = next(iter(steps)), list(steps)[-1]
    return f"{len(steps)} steps ({first} to {last}), ranks {steps[first]}"
