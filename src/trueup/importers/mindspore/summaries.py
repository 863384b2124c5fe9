"""The summary of each tensor: of its values by our own definitions, else of what ``statistic.csv`` says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl

from trueup.errors import TraceError
from trueup.importers.frames import columns_from_rows, frame_from_columns, with_text
from trueup.importers.mindspore.device_file import DeviceTensor, values_of
from trueup.importers.mindspore.entries import TensorEntry
from trueup.importers.mindspore.names import FileName
from trueup.importers.mindspore.operators import RESHAPES, Operators
from trueup.importers.mindspore.views import MOVING_VIEWS, UNKNOWN_VIEW, view_of
from trueup.importers.npy import not_whole, read_memory, stored
from trueup.numerics._native import summarise_array
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS
from trueup.store import StoredTensor, schema
from trueup.types.trace import SummaryRow

_WANTED = HAS_STATISTICS | HAS_DIGEST | HAS_SKETCH
_COUNTS = ("num_nan", "num_posinf", "num_neginf", "num_zero")
_NUMBERS = ("minimum", "maximum", "mean", "l2_norm", "smallest_nonzero")
_PLAIN_FORMATS = frozenset({"DefaultFormat", "NCHW", "ND"})
_MAX_DIMS = 16
_TELLING = ("minimum", "maximum", "mean", "l2_norm")
_ENOUGH_STATISTICS = 3


class Summaries:
    """Rows of ``summaries``, one a tensor; values are read one tensor at a time and not kept."""

    def __init__(self) -> None:
        self._rows: list[SummaryRow] = []
        self._digests: dict[int, str] = {}
        self._extra: dict[int, str] = {}

    def add(
        self, entry: TensorEntry, folder: Path, chunk: int, known: Operators
    ) -> tuple[int | None, str | None]:
        """Row of the summary of ``entry``, and what is special about it; no row where nothing is known.

        Raises:
            TraceError: the file of its values is damaged or refused.
        """
        trouble = None
        if entry.device is not None and entry.device.trouble is not None:
            trouble, row = entry.device.trouble, None
        elif entry.file is not None:
            values = read_entry(entry.name, entry.file, entry.device, folder, known)
            row, trouble = (None, UNKNOWN_VIEW) if values is None else _from_values(values)
            if row is not None:
                row |= {"chunk": chunk, "tensor": tensor_key(entry)}
        else:
            row = None
        if row is None and entry.statistics is not None:
            row = _from_statistics(entry)
        if row is None:
            return None, trouble
        number = len(self._rows)
        self._rows.append(cast(SummaryRow, row))
        self._take_rest(number, entry)
        return number, trouble

    def _take_rest(self, number: int, entry: TensorEntry) -> None:
        extra: dict[str, object] = dict(entry.statistics.extra) if entry.statistics else {}
        if entry.name.format and entry.name.format not in _PLAIN_FORMATS:
            extra["format"] = entry.name.format
        if extra:
            self._extra[number] = json.dumps(extra)
        if entry.statistics and entry.statistics.digest:
            self._digests[number] = entry.statistics.digest

    def contents(self) -> list[tuple[object, ...] | None]:
        """Of every row what tells its values from others: all bits, or an MD5, or three statistics at least.

        None where there is less, and of single elements.
        """
        return [self._content(number, row) for number, row in enumerate(self._rows)]

    def _content(self, number: int, row: SummaryRow) -> tuple[object, ...] | None:
        if row["numel"] <= 1:
            return None
        what = (row["dtype"], *row["shape"])
        if "digest" in row:
            return row["digest"], *what
        if number in self._digests:
            return self._digests[number], *what
        known = tuple(row.get(name) for name in _TELLING if name in row)
        return (*known, *what) if len(known) >= _ENOUGH_STATISTICS else None

    def frame(self) -> pl.DataFrame:
        """The table."""
        names = [column.name for column in schema.SUMMARIES]
        rows = [tuple(row.get(name) for name in names) for row in self._rows]
        frame = frame_from_columns(columns_from_rows(rows, names), len(rows), schema.SUMMARIES)
        frame = frame.with_row_index("summary").cast({"summary": pl.Int32})
        return with_text(with_text(frame, "source_digest", self._digests), "source_extra", self._extra)


def tensor_key(entry: TensorEntry) -> str:
    """What finds the values of ``entry`` again: the file, and in an operator's file the slot."""
    assert entry.file is not None
    return entry.file if entry.device is None else f"{entry.file}#{entry.name.side}.{entry.name.slot}"


def read_entry(
    name: FileName, file: str, device: DeviceTensor | None, folder: Path, known: Operators
) -> StoredTensor | None:
    """The values of a tensor; None where its file shows the memory of another, and it is not known where.

    Raises:
        TraceError: the file is damaged or refused.
    """
    if device is not None:
        return values_of(folder / file, device)
    try:
        values, shape = read_memory(folder / file)
        found = view_of(values, shape, name, known.flow, known.nodes.get(name.op_name))
        if found is None and values.size < math.prod(shape) and name.op_type not in MOVING_VIEWS | RESHAPES:
            raise not_whole(folder / file, values.size, shape)
    except TraceError as error:
        raise TraceError(
            f"{error}. The run was probably killed, or the disk full, while it was written: remove the file, "
            "or leave this step out with --steps."
        ) from error
    return None if found is None else stored(found, name.dtype or "")


def _from_values(stored: StoredTensor) -> tuple[dict[str, object] | None, str | None]:
    entry = DTYPES.get(stored.dtype)
    if entry is None or len(stored.shape) > _MAX_DIMS:
        return None, f"no summary: {len(stored.shape)} dimensions of {stored.dtype} are not supported"
    array = stored.data.view(np.dtype(entry.storage)).reshape(stored.shape)
    found = summarise_array(array, _WANTED, dtype=stored.dtype)
    row: dict[str, object] = {"dtype": stored.dtype, "shape": list(stored.shape)}
    row |= {name: int(found[name]) for name in ("numel", *_COUNTS, "digest")}
    row |= {name: None if math.isnan(found[name]) else float(found[name]) for name in _NUMBERS}
    return row | {"sketch": found["sketch"].tobytes()}, None


def _from_statistics(entry: TensorEntry) -> dict[str, object]:
    """MindSpore's numbers as they are; what was not configured stays unknown."""
    line = entry.statistics
    assert line is not None
    row: dict[str, object] = {
        "dtype": line.name.dtype,
        "shape": list(line.shape),
        "numel": math.prod(line.shape),
    }
    return row | line.numbers
