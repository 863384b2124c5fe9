"""Series of one rank: a row of numbers a step, appended while the run continues and readable at any time.

A folder of segments, each a ``series_NNN.json`` that names the columns and a ``series_NNN.rows`` of
fixed-size rows: the step as int64, then float32 values, little-endian. A new segment begins when a column is
new. NaN is a number that was not measured in that step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from trueup.errors import TraceError
from trueup.store.writer import write_json

VERSION = 1
Floats32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Numbers of one kind in one step: for each column one a name."""

    names: tuple[str, ...]
    columns: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class ColumnSeries:
    """One column of one kind over the steps."""

    steps: NDArray[np.int64]
    names: tuple[str, ...]
    values: Floats32
    """(steps, names)"""


class _Kind:
    """Where the numbers of one kind stand in a row."""

    __slots__ = ("columns", "names", "numbers", "offset", "places")

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()
        self.names: tuple[str, ...] = ()
        self.numbers: dict[str, int] = {}
        self.offset = 0
        self.places: tuple[tuple[str, ...], NDArray[np.int64]] = ((), np.zeros(0, np.int64))
        """the names last written, and their numbers"""

    def takes(self, block: StepBlock) -> bool:
        """Whether every name and column is known; learns those that are not."""
        if self.places[0] == block.names and all(column in self.columns for column in block.columns):
            return True
        new = [name for name in block.names if name not in self.numbers]
        for name in new:
            self.numbers[name] = len(self.numbers)
        columns = tuple(dict.fromkeys((*self.columns, *block.columns)))
        known = not new and columns == self.columns
        self.names, self.columns = tuple(self.numbers), columns
        self.places = block.names, np.asarray([self.numbers[n] for n in block.names], np.int64)
        return known


class SeriesWriter:
    """Appends the rows of one rank; what is written is on its way to the disk when ``append`` returns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kinds: dict[str, _Kind] = {}
        self._file: BinaryIO | None = None
        self._size = 0

    def append(self, step: int, blocks: Mapping[str, StepBlock]) -> None:
        """Write one row.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        if not blocks:
            return
        known = self._file is not None
        for kind, block in blocks.items():
            known &= self._kinds.setdefault(kind, _Kind()).takes(block)
        if not known:
            self._begin_segment()
        row = np.full(self._size, np.nan, "<f4")
        with np.errstate(over="ignore"):
            for kind, block in blocks.items():
                into = self._kinds[kind]
                for number, column in enumerate(into.columns):
                    if column in block.columns:
                        begin = into.offset + number * len(into.names)
                        row[begin + into.places[1]] = block.columns[column]
        assert self._file is not None
        self._file.write(np.int64(step).tobytes() + row.tobytes())

    def close(self) -> None:
        """No row follows."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin_segment(self) -> None:
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in self._folder.glob("series_*.json"))
        self._size = 0
        for kind in self._kinds.values():
            kind.offset = self._size
            self._size += len(kind.columns) * len(kind.names)
        described = [
            {"kind": name, "columns": list(kind.columns), "names": list(kind.names)}
            for name, kind in self._kinds.items()
        ]
        stem = self._folder / f"series_{number:03d}"
        write_json(stem.with_suffix(".json"), {"version": VERSION, "kinds": described})
        self._file = stem.with_suffix(".rows").open("ab", buffering=0)


class SeriesReader:
    """The series of one rank, as far as they are written."""

    def __init__(self, folder: Path) -> None:
        self._segments = [_Segment(path) for path in sorted(folder.glob("series_*.json"))]

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """Kinds and the columns of each."""
        found: dict[str, dict[str, None]] = {}
        for segment in self._segments:
            for kind, (columns, _, _) in segment.kinds.items():
                found.setdefault(kind, {}).update(dict.fromkeys(columns))
        return {kind: tuple(columns) for kind, columns in found.items()}

    def series(self, kind: str, column: str, *, last: int | None = None) -> ColumnSeries | None:
        """One column over all steps, or over the ``last`` rows; None where it was never measured.

        Steps trained again after a restart are there once, as they were the last time.
        """
        parts = [part for segment in self._segments if (part := segment.series(kind, column, last))]
        if not parts:
            return None
        names = max((part.names for part in parts), key=len)
        values = np.full((sum(len(p.steps) for p in parts), len(names)), np.nan, np.float32)
        steps = np.concatenate([part.steps for part in parts])
        number = {name: place for place, name in enumerate(names)}
        at = 0
        for part in parts:
            kept = [i for i, name in enumerate(part.names) if name in number]
            values[at : at + len(part.steps), [number[part.names[i]] for i in kept]] = part.values[:, kept]
            at += len(part.steps)
        _, where = np.unique(steps[::-1], return_index=True)
        order = len(steps) - 1 - where
        order = order if last is None else order[-last:]
        return ColumnSeries(steps[order], names, values[order])

    def rows(self) -> Iterator[tuple[int, dict[tuple[str, str], tuple[tuple[str, ...], Floats32]]]]:
        """Every row in the order written: the step, and (kind, column) -> names and values."""
        for segment in self._segments:
            yield from segment.rows()


class _Segment:
    def __init__(self, path: Path) -> None:
        try:
            header = json.loads(path.read_text(encoding="utf-8"))
            version = header["version"]
            kinds = [
                (str(k["kind"]), list(map(str, k["columns"])), tuple(map(str, k["names"])))
                for k in header["kinds"]
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TraceError(f"{path} is no header of series: {error}") from error
        if version != VERSION:
            raise TraceError(f"{path} is of version {version}; this trueup reads version {VERSION}")
        self.kinds: dict[str, tuple[list[str], tuple[str, ...], int]] = {}
        size = 0
        for kind, columns, names in kinds:
            self.kinds[kind] = columns, names, size
            size += len(columns) * len(names)
        self._rows = path.with_suffix(".rows")
        self._dtype = np.dtype([("step", "<i8"), ("values", "<f4", (size,))])

    def _read(self) -> NDArray[np.void]:
        """The whole rows; one that is being written is left out."""
        num = self._rows.stat().st_size // self._dtype.itemsize if self._rows.exists() else 0
        if not num:
            return np.zeros(0, self._dtype)
        return np.asarray(np.memmap(self._rows, self._dtype, mode="r", shape=(num,)))

    def series(self, kind: str, column: str, last: int | None) -> ColumnSeries | None:
        if kind not in self.kinds or column not in self.kinds[kind][0]:
            return None
        columns, names, offset = self.kinds[kind]
        rows = self._read()
        rows = rows if last is None else rows[-last:]
        begin = offset + columns.index(column) * len(names)
        return ColumnSeries(
            np.asarray(rows["step"]), names, np.asarray(rows["values"][:, begin : begin + len(names)])
        )

    def rows(self) -> Iterator[tuple[int, dict[tuple[str, str], tuple[tuple[str, ...], Floats32]]]]:
        for row in self._read():
            found = {}
            for kind, (columns, names, offset) in self.kinds.items():
                for number, column in enumerate(columns):
                    begin = offset + number * len(names)
                    found[kind, column] = names, np.asarray(row["values"][begin : begin + len(names)])
            yield int(row["step"]), found
