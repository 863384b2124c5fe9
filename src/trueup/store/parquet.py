"""Parquet files: damage is an error that names the file."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import polars as pl

from trueup.errors import TraceError
from trueup.store.files import parquet_from_path
from trueup.store.pages import refuse_damaged_pages

PARQUET_ERRORS = (
    OSError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,  # no Exception: polars' threads panic where offsets are wrong
    MemoryError,  # of a size that the file only claims
    IndexError,
    ValueError,
)
"""What reading a damaged file raises."""


@contextmanager
def damage_named(table: object, *, remedy: str) -> Iterator[None]:
    """Around code that reads lazily: damage that shows then is an error that names the table.

    Raises:
        TraceError: a part cannot be read.
    """
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise TraceError(f"{table} cannot be read ({' '.join(str(error).split())}); {remedy}") from error


def frame_from_parquet(path: Path, *, remedy: str) -> pl.DataFrame:
    """All rows of a file; ``remedy`` is what a person does where it is damaged.

    Raises:
        TraceError: missing, no regular file, or damaged.
    """
    return _read(path, partial(pl.read_parquet, memory_map=True, glob=False), remedy)


def lazy_from_parquet(path: Path, *, remedy: str) -> pl.LazyFrame:
    """The rows of a file, read when they are asked for; damage inside its pages shows only then
    (``damage_named``).

    Raises:
        TraceError: as ``frame_from_parquet``.
    """
    return _read(path, partial(pl.scan_parquet, glob=False), remedy)


_Frame = TypeVar("_Frame", pl.DataFrame, pl.LazyFrame)


def _read(path: Path, read: Callable[[Path | io.BytesIO], _Frame], remedy: str) -> _Frame:
    try:
        source = parquet_from_path(path)
        refuse_damaged_pages(source)
        return read(source)
    except PARQUET_ERRORS as error:
        raise TraceError(f"{path} cannot be read ({' '.join(str(error).split())}); {remedy}") from error
