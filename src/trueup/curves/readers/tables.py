"""Tables: CSV (W&B's exports among them), JSON lines and lists, Parquet; and a trueup trace's scalars."""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from trueup.curves.columns import GRAD_NORM, LOSS, SCHEMA, STEP, find_columns
from trueup.curves.readers.protocol import LogRows
from trueup.errors import TraceError
from trueup.store.pages import refuse_damaged_pages
from trueup.store.parquet import PARQUET_ERRORS
from trueup.types.codes import CurvesCode
from trueup.types.reason import reason


def rows_from_table(table: pl.DataFrame, chosen: Mapping[str, str], path: Path) -> LogRows:
    """The columns of a curve among those of a table.

    Raises:
        TraceError: none is a loss or gradient norm; says which there are.
    """
    found = find_columns(table.columns, chosen)
    if LOSS not in found and GRAD_NORM not in found:
        names = ", ".join(table.columns[:12])
        raise TraceError(
            f"{path} has no column of a loss or gradient norm that is known; it has {names}. "
            "Say which with --column loss=NAME"
        )
    notes = []
    if STEP not in found:
        table = table.with_row_index("step", offset=1)
        found[STEP] = find_columns(["step"])[STEP]
        notes.append(reason(CurvesCode.COUNTED_LINES, unit="row"))
    frame = table.select(
        (_number(table, name) * alias.scale).cast(SCHEMA[column], strict=False).alias(column)
        for column, (name, alias) in found.items()
    )
    measured = [column for column in (LOSS, GRAD_NORM) if column in frame.columns]
    frame = frame.filter(pl.col(STEP).is_not_null() & pl.any_horizontal(pl.col(measured).is_not_null()))
    units = {column: alias.unit for column, (_, alias) in found.items() if alias.unit}
    return LogRows(frame=frame, units=units, notes=tuple(notes))


def _number(table: pl.DataFrame, name: str) -> pl.Expr:
    """A column as Float64: of a list its first item, of text what it says."""
    kind = table.schema[name]
    if isinstance(kind, pl.List):
        return pl.col(name).list.first().cast(pl.Float64, strict=False)
    if kind == pl.String:
        text = pl.col(name).str.strip_chars()
        infinite = text.str.to_lowercase().replace({"infinity": "inf", "-infinity": "-inf", "": None})
        return infinite.cast(pl.Float64, strict=False)
    return pl.col(name).cast(pl.Float64, strict=False)


def frame_from_objects(
    objects: Sequence[Mapping[str, object]], chosen: Mapping[str, str], path: Path
) -> LogRows:
    """Rows out of JSON objects that need not have the same keys."""
    names = list(dict.fromkeys(name for entry in objects for name in entry))
    table = pl.DataFrame(
        {
            name.encode("utf-8", "replace").decode("utf-8"): pl.Series(
                [_plain(entry.get(name)) for entry in objects], dtype=pl.Float64
            )
            for name in names
        }
    )
    return rows_from_table(table, chosen, path)


def _plain(value: object) -> float | None:
    if isinstance(value, list) and value:
        value = value[0]
    try:
        return float(value) if isinstance(value, (bool, int, float, str)) else None
    except (ValueError, OverflowError):
        return None


class Csv:
    """Comma-, semicolon- or tab-separated values under a heading."""

    name = "csv"
    title = "CSV"
    appendable = False

    def recognises(self, head: bytes, path: Path) -> bool:
        """Whether the first line names a loss or gradient norm, or the name ends in .csv or .tsv."""
        line = head.partition(b"\n")[0].decode("utf-8", "replace").lstrip("\ufeff").strip()
        if path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv")):
            return True
        names = [name.strip().strip('"') for name in line.split(_separator(line))]
        found = find_columns(names) if len(names) > 1 else {}
        return STEP in found and (LOSS in found or GRAD_NORM in found)

    def read(self, data: bytes, path: Path, chosen: Mapping[str, str]) -> LogRows:
        """The rows of the table.

        Raises:
            TraceError: it cannot be parsed, or has no column of a curve.
        """
        separator = _separator(data.partition(b"\n")[0].decode("utf-8", "replace"))
        with warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("always")
            try:
                table = pl.read_csv(
                    io.BytesIO(data),
                    separator=separator,
                    infer_schema_length=1000,
                    ignore_errors=True,
                    truncate_ragged_lines=True,
                    null_values=["", "null", "None", "N/A"],
                )
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
                raise TraceError(f"{path} cannot be read as CSV: {str(error).splitlines()[0]}") from error
        if remarks:  # an unbalanced quote: rows would be lost without a word
            raise TraceError(f"{path} cannot be read as CSV: {remarks[0].message}")
        return rows_from_table(table, chosen, path)


def _separator(line: str) -> str:
    return max(",;\t", key=line.count)


class JsonLines:
    """One JSON object a line."""

    name = "jsonl"
    title = "JSON lines"
    appendable = True

    def recognises(self, head: bytes, path: Path) -> bool:
        """Whether the first line is an object with a loss or gradient norm, or at least a step."""
        for line in head.split(b"\n", 20)[:20]:
            entry = _object(line)
            if entry is None:
                if line.strip():
                    return False
                continue
            found = find_columns(entry)
            if LOSS in found or GRAD_NORM in found or STEP in found:
                return True
        return False

    def read(self, data: bytes, path: Path, chosen: Mapping[str, str]) -> LogRows:
        """The rows of its lines; a half-written last line is left out."""
        data = data[: data.rfind(b"\n") + 1] or data
        try:
            table = pl.read_ndjson(io.BytesIO(data), infer_schema_length=1000)
        except pl.exceptions.PolarsError:  # NaN and Infinity, which Python writes, are no JSON
            objects = [entry for line in data.split(b"\n") if (entry := _object(line)) is not None]
            return frame_from_objects(objects, chosen, path)
        return rows_from_table(table, chosen, path)


def _object(line: bytes) -> dict[str, object] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


class JsonList:
    """One JSON list of objects, or an object of columns."""

    name = "json"
    title = "JSON"
    appendable = False

    def recognises(self, head: bytes, path: Path) -> bool:
        """Whether it begins like one; what is in it is seen on reading."""
        if re.match(
            rb"\s*\[\s*([\[{\"\]]|-?\d[\d.eE+-]*\s*[,\]]|$)", head
        ):  # a console's line begins with ``[rank0]``
            return True
        return head.lstrip()[:1] == b"{" and path.name.lower().removesuffix(".gz").endswith(".json")

    def read(self, data: bytes, path: Path, chosen: Mapping[str, str]) -> LogRows:
        """The rows of the list.

        Raises:
            TraceError: it is no JSON, or no list of objects and no object of lists.
        """
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{path} cannot be read as JSON: {error}") from error
        if isinstance(content, dict):
            columns = {name: values for name, values in content.items() if isinstance(values, list)}
            length = max(map(len, columns.values()), default=0)
            content = [
                {name: values[row] for name, values in columns.items() if row < len(values)}
                for row in range(length)
            ]
        if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
            raise TraceError(f"{path} is JSON, but neither a list of objects nor columns of numbers")
        return frame_from_objects(content, chosen, path)


class Parquet:
    """A Parquet table."""

    name = "parquet"
    title = "Parquet"
    appendable = False

    def recognises(self, head: bytes, path: Path) -> bool:
        """Whether it has Parquet's first four bytes."""
        return head[:4] == b"PAR1"

    def read(self, data: bytes, path: Path, chosen: Mapping[str, str]) -> LogRows:
        """The rows of the table.

        Raises:
            TraceError: it is damaged, or has no column of a curve.
        """
        try:
            refuse_damaged_pages(io.BytesIO(data))
            return rows_from_table(pl.read_parquet(io.BytesIO(data)), chosen, path)
        except PARQUET_ERRORS as error:
            raise TraceError(f"{path} cannot be read as Parquet: {error}") from error
