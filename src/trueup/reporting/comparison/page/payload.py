"""Tables as a page carries them: columnar, dictionary-encoded, gzipped, base64.

Layout of one table, before compression: the length of the header (uint32, little endian), the header (JSON),
then the bytes of each column one after another. A header entry has ``name``, ``kind``, ``bytes`` and maybe
``nulls`` (bytes of a uint8 mask that follows the column) and ``words`` (a dictionary). Kinds:

- ``code``: uint8/16/32 numbers of words, 0 for null.
- ``float``: float64, rounded to 32 bits of mantissa (9 digits), its eight byte planes apart: the planes of
  rounded and repeated numbers are runs of one byte, which gzip removes.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl

from trueup.reporting.formatting import upright

_DROPPED_BITS = 20
_WIDTHS = ((2**8, np.uint8), (2**16, np.uint16), (2**32, np.uint32))


def encode_tables(tables: Iterable[pl.LazyFrame]) -> list[str]:
    """Each table as base64 text; two are read and compressed at the same time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(encode_table, tables))


def encode_table(table: pl.LazyFrame) -> str:
    """One table as base64, read a column at a time: numbers become ``float``, the rest ``code`` columns."""
    header: list[dict[str, object]] = []
    parts: list[bytes] = []
    rows = 0
    for name in table.collect_schema().names():
        series = table.select(name).collect().to_series()
        rows = len(series)
        entry, data = _float(series) if series.dtype.is_numeric() else _code(series)
        header.append({"name": name, **entry})
        parts += data
    head = json.dumps({"rows": rows, "columns": header}, separators=(",", ":")).encode()
    squeeze = zlib.compressobj(level=3, wbits=31)
    zipped = [squeeze.compress(part) for part in (struct.pack("<I", len(head)), head, *parts)]
    return base64.b64encode(b"".join([*zipped, squeeze.flush()])).decode("ascii")


def _float(series: pl.Series) -> tuple[dict[str, object], list[bytes]]:
    values = series.cast(pl.Float64)
    bits = values.fill_null(0.0).to_numpy().astype("<f8").view(np.uint64)
    finite = (bits >> np.uint64(52)) & np.uint64(0x7FF) != 0x7FF
    rounded = (bits + np.uint64(1 << (_DROPPED_BITS - 1))) & ~np.uint64((1 << _DROPPED_BITS) - 1)
    planes = np.where(finite, rounded, bits).view(np.uint8).reshape(-1, 8).T
    entry: dict[str, object] = {"kind": "float", "bytes": planes.size}
    parts = [planes.tobytes()]
    if values.null_count():
        mask = values.is_null().cast(pl.UInt8).to_numpy().tobytes()
        entry["nulls"] = len(mask)
        parts.append(mask)
    return entry, parts


def _code(series: pl.Series) -> tuple[dict[str, object], list[bytes]]:
    text = series.cast(pl.String)
    words = text.drop_nulls().unique(maintain_order=True)
    numbers = text.replace_strict(words, np.arange(1, len(words) + 1), default=0, return_dtype=pl.UInt32)
    width = next(dtype for limit, dtype in _WIDTHS if len(words) + 1 <= limit)
    data = numbers.to_numpy().astype(width).tobytes()
    return {"kind": "code", "bytes": len(data), "words": [upright(word) for word in words]}, [data]
