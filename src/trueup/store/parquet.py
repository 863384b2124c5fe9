"""Parquet files: damage is an error that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from trueup.errors import TraceError
from trueup.store.files import parquet_from_path

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
    try:
        return pl.read_parquet(parquet_from_path(path), memory_map=True, glob=False)
    except PARQUET_ERRORS as error:
        raise TraceError(f"{path} cannot be read ({' '.join(str(error).split())}); {remedy}") from error
