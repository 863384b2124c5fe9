"""Rows of another tool's dump, put into the frames of docs/trace-format.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
import pyarrow as pa

from trueup.errors import TraceError


def columns_from_rows(
    rows: Sequence[tuple[object, ...]], names: Sequence[str]
) -> dict[str, Sequence[object]]:
    """The rows turned into named columns."""
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return dict(zip(names, columns, strict=True))


def frame_from_columns(columns: Mapping[str, object], num: int, wanted: pa.Schema) -> pl.DataFrame:
    """A frame of exactly the ``wanted`` columns; those that are not given are null in all ``num`` rows.

    Raises:
        TraceError: the dump holds a value that a column cannot; names the column.
    """
    arrays = []
    for field in wanted:
        values = columns.get(field.name)
        try:
            if values is None:
                arrays.append(pa.nulls(num, field.type))
            elif pa.types.is_dictionary(field.type):
                arrays.append(pa.array(values, pa.string()).dictionary_encode())
            else:
                arrays.append(pa.array(values, field.type))
        except (OverflowError, pa.ArrowException) as error:
            raise TraceError(f"a value is no {field.name}: {error}") from error
    frame = pl.from_arrow(pa.Table.from_arrays(arrays, schema=wanted))
    assert isinstance(frame, pl.DataFrame)
    return frame


def with_text(frame: pl.DataFrame, name: str, values: dict[int, str]) -> pl.DataFrame:
    """``frame`` with one more column, where there is anything to put into it."""
    if not values:
        return frame
    return frame.with_columns(
        pl.Series(name, [values.get(row) for row in range(frame.height)], dtype=pl.String)
    )
