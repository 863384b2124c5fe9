"""TensorBoard event files, read without TensorFlow: records of length, checksum, message, checksum."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from trueup.curves.columns import find_columns
from trueup.curves.readers.protocol import Rows
from trueup.curves.readers.tables import rows_from_table
from trueup.errors import TraceError
from trueup.weights.protobuf import Damaged, fields, unsigned_values

_STEP, _SUMMARY = 2, 5
_VALUE, _TAG, _SIMPLE, _TENSOR = 1, 1, 2, 8
_DTYPE, _CONTENT, _FLOATS, _DOUBLES = 1, 4, 5, 6
_FLOAT, _DOUBLE = 1, 2
_VERSION = b"brain.Event:"


class EventFile:
    """``events.out.tfevents.*``."""

    name = "tensorboard"
    title = "TensorBoard events"
    appendable = False

    def recognises(self, head: bytes, path: Path) -> bool:
        """Whether its first record is the version of the format."""
        return _VERSION in head[:64] and len(head) >= 12

    def read(self, data: bytes, path: Path, chosen: Mapping[str, str]) -> Rows:
        """One row a step; a record that is half written ends the reading.

        Raises:
            TraceError: it holds no scalar of a curve; says which it holds.
        """
        by_tag: dict[str, list[tuple[int, float]]] = {}
        for step, tag, value in scalars(data):
            by_tag.setdefault(tag, []).append((step, value))
        found = dict(find_columns(by_tag, chosen).values())
        if not found:
            raise TraceError(
                f"{path} holds no scalar of a curve that is known; it holds {', '.join(list(by_tag)[:12])}. "
                "Say which with --column loss=TAG"
            )
        table = None
        for name in found:
            one = pl.DataFrame(by_tag[name], schema={"step": pl.Int64, name: pl.Float64}, orient="row")
            one = one.with_columns(pl.col("step").cum_count().over("step").alias("#"))
            table = one if table is None else table.join(one, on=["step", "#"], how="full", coalesce=True)
        assert table is not None
        return rows_from_table(table.drop("#"), {**chosen, "step": "step"}, path)


def scalars(data: bytes) -> Iterator[tuple[int, str, float]]:
    """Step, tag and value of every scalar, in the order they were written."""
    view = memoryview(data)
    for begin, end in _records(view):
        try:
            yield from _of_event(view, begin, end)
        except (Damaged, struct.error):
            return


def _records(view: memoryview) -> Iterator[tuple[int, int]]:
    at = 0
    while at + 12 <= len(view):
        (length,) = struct.unpack_from("<Q", view, at)
        if at + 16 + length > len(view):
            return
        yield at + 12, at + 12 + length
        at += 16 + length


def _of_event(view: memoryview, begin: int, end: int) -> Iterator[tuple[int, str, float]]:
    step, summary = 0, None
    for number, start, stop in fields(view, begin, end):
        if number == _STEP:
            step = next(unsigned_values(view, start, stop))
        elif number == _SUMMARY:
            summary = start, stop
    if summary is None:
        return
    for number, start, stop in fields(view, *summary):
        if number == _VALUE:
            tag, value = _of_value(view, start, stop)
            if value is not None:
                yield step, tag, value


def _of_value(view: memoryview, begin: int, end: int) -> tuple[str, float | None]:
    tag, value = "", None
    for number, start, stop in fields(view, begin, end):
        if number == _TAG:
            tag = bytes(view[start:stop]).decode("utf-8", "replace")
        elif number == _SIMPLE:
            (value,) = struct.unpack_from("<f", view, start)
        elif number == _TENSOR:
            value = _of_tensor(view, start, stop)
    return tag, value


def _of_tensor(view: memoryview, begin: int, end: int) -> float | None:
    """The first number of a float or double tensor, as newer writers keep a scalar."""
    kind, value = _FLOAT, None
    for number, start, stop in fields(view, begin, end):
        if number == _DTYPE:
            kind = next(unsigned_values(view, start, stop))
        elif number in (_FLOATS, _DOUBLES, _CONTENT) and kind in (_FLOAT, _DOUBLE) and stop > start:
            single = number == _FLOATS or (number == _CONTENT and kind == _FLOAT)
            value = float(struct.unpack_from("<f" if single else "<d", view, start)[0])
    return value
