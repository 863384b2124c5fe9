"""Numbers out of the lines of a log: by the C scanner, or by polars where that was not built."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

scanner: Any
try:
    scanner = importlib.import_module("trueup.curves.readers._scan")
except ImportError:
    scanner = None

_VALUE = (
    r"[ \[('\"]*(?:tensor\()?(?:np\.float(?:64|32)\()?"
    r"((?i:[-+]?(?:nan|inf)|true|false)|[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?\.?\d*(?:[eE][-+]?\d+)?(?:[KMBT](?:\s|$))?)"
)
_SAMPLE_BYTES = 1 << 16
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True)
class Key:
    """What stands before a number in a line."""

    text: str
    skip: str = ""
    """one character: the number stands behind the first of these after ``text``"""


def count(data: bytes, marker: str) -> int:
    """How often ``marker`` stands in ``data``."""
    if scanner is None:
        return data.count(marker.encode())
    found: int = scanner.count(_address(data), len(data), marker.encode())
    return found


def scan(data: bytes, marker: str, keys: Sequence[Key]) -> pl.DataFrame:
    """One row a line that holds ``marker``, one Float64 column a key (``"0"``, ``"1"``, ...), null where a
    line
    has no number behind it.

    Numbers may be NaN, inf, True or False, have commas between thousands and one of K M B T behind them.
    """
    if scanner is None:
        return scan_by_definition(data, marker, keys)
    texts = tuple(key.text.encode() for key in keys)
    skips = b"".join(key.skip.encode() or b"\0" for key in keys)
    capacity = _estimate(data, marker)
    while True:
        out = np.empty((len(keys), capacity))
        there = np.zeros((len(keys), capacity), np.uint8)
        places = out.ctypes.data, there.ctypes.data
        rows = scanner.scan(_address(data), len(data), marker.encode(), texts, skips, *places, capacity)
        if rows < capacity:
            break
        capacity = 1 + count(data, marker)
    columns = []
    for index in range(len(keys)):
        values = pl.Series(str(index), out[index, :rows])
        known = there[index, :rows].view(bool)
        if not known.any():
            values = pl.Series(str(index), [None] * rows, pl.Float64)
        elif not known.all():
            values = values.set(pl.Series(~known), None)
        columns.append(values)
    return pl.DataFrame(columns)


def _estimate(data: bytes, marker: str) -> int:
    """More rows than there will be, if lines are as long everywhere as in the first part that has the
    marker."""
    begin = max(0, data.find(marker.encode()))
    part = data[begin : begin + _SAMPLE_BYTES]
    return 64 + int(1.2 * count(part, marker) * max(1.0, (len(data) - begin) / max(1, len(part))))


def scan_by_definition(data: bytes, marker: str, keys: Sequence[Key]) -> pl.DataFrame:
    """The same as :func:`scan`, by polars alone: ten times slower."""
    text = data.decode("utf-8", errors="replace")
    lines = pl.Series("line", text.split("\n"), pl.String).to_frame()
    lines = lines.filter(pl.col("line").str.contains(marker, literal=True))
    return lines.select(_extracted(key).alias(str(index)) for index, key in enumerate(keys))


def _extracted(key: Key) -> pl.Expr:
    behind = f"[^{re.escape(key.skip)}]*{re.escape(key.skip)}" if key.skip else ""
    text = pl.col("line").str.extract(re.escape(key.text) + behind + _VALUE)
    text = text.str.strip_chars().str.to_lowercase().str.replace_all(",", "", literal=True)
    text = text.replace({"true": "1", "false": "0"})
    unit = text.str.extract("([kmbt])$").str.to_uppercase().replace_strict(_UNITS, default=1.0)
    return text.str.strip_chars_end("kmbt").cast(pl.Float64, strict=False) * unit.fill_null(1.0)


def _address(data: bytes) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data) if data else 0
