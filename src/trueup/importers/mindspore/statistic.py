"""``statistic.csv``: one line a tensor, with the configured statistics, in any order."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from pathlib import Path

from trueup.errors import TraceError
from trueup.importers.mindspore.names import FileName, dtype_from_mindspore

_NUMBERS = {
    "max value": "maximum",
    "min value": "minimum",
    "avg value": "mean",
    "l2norm value": "l2_norm",
    "nan count": "num_nan",
    "positive inf count": "num_posinf",
    "negative inf count": "num_neginf",
    "zero count": "num_zero",
    "count": "numel",
    "max": "maximum",
    "min": "minimum",
    "avg": "mean",
    "mean": "mean",
    "l2norm": "l2_norm",
}
"""column, in lower case -> our name, also as the configuration's ``statistic_category`` has it; ``Negative
Zero Count`` and ``Positive Zero Count`` count negative and positive elements and stay as they are"""
_COUNTS = frozenset({"num_nan", "num_posinf", "num_neginf", "num_zero", "numel"})
_DIGESTS = {"md5": "md5", "md5 value": "md5", "sha1": "sha1", "sha1 value": "sha1"}
_NEEDED = ("op type", "op name", "task id", "stream id", "timestamp", "slot", "data type", "shape")
_SIDE = ("io", "input/output")
_KNOWN = frozenset({*_NEEDED, *_SIDE, *_NUMBERS, *_DIGESTS, "data size", "format"})
_TRUTH = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """One line."""

    name: FileName
    shape: tuple[int, ...]
    numbers: dict[str, float | int] = field(default_factory=dict)
    """by our names; what was not configured is not there"""
    digest: str | None = None
    """``md5:...`` or ``sha1:...``"""
    extra: dict[str, str] = field(default_factory=dict)
    """columns we have no name for"""


def read_statistics(file: Path) -> list[Statistics]:
    """Every line of ``file``, in its order.

    Raises:
        TraceError: empty, without its columns, or with a line that is cut off or malformed; says which.
    """
    try:
        with file.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
            lines = list(csv.reader(stream))
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error.strerror or error}") from error
    except csv.Error as error:
        raise TraceError(f"{file} is no table of comma-separated values: {error}") from error
    if not any(any(cell.strip() for cell in line) for line in lines):
        raise TraceError(
            f"{file} is empty: the run ended before MindSpore wrote a line. Dump again, or leave this step "
            "out with --steps."
        )
    head = [cell.strip().lower() for cell in lines[0]]
    missing = [name for name in _NEEDED if name not in head]
    if not set(_SIDE) & set(head):
        missing.append("io")
    if missing:
        raise TraceError(
            f"{file} has no column {', '.join(map(repr, missing))}: its first line is no heading of "
            "MindSpore's statistic.csv (was the file cut or edited?)"
        )
    if not {*_NUMBERS, *_DIGESTS} & set(head):
        others = ", ".join(repr(name) for name in head if name not in _KNOWN) or "none"
        raise TraceError(
            f"{file} has no statistic that is read, such as 'Max Value', 'L2Norm Value' or 'md5' (columns "
            f"besides those of an operator: {others}); dump again with "
            "trueup dump-config --kind partial --statistics max,min,l2norm"
        )
    return [_line(file, number, head, line) for number, line in enumerate(lines[1:], 2) if any(line)]


def _line(file: Path, number: int, head: list[str], line: list[str]) -> Statistics:
    """Lines end with one comma more than the heading, so that one empty cell is left over."""
    cells = _with_whole_shape(line, head.index("shape"))
    cells = cells[:-1] if len(cells) == len(head) + 1 and not cells[-1].strip() else cells
    if len(cells) != len(head):
        raise TraceError(
            f"{file}, line {number}: {len(cells)} cells where the heading has {len(head)}; the run was "
            "probably killed while it was written. Remove the line, or leave this step out with --steps."
        )
    row = {name: cell.strip() for name, cell in zip(head, cells, strict=True)}
    try:
        return _statistics(row)
    except ValueError as error:
        raise TraceError(
            f"{file}, line {number}: {error}. Remove the line, or leave this step out with --steps."
        ) from error


def _with_whole_shape(line: list[str], at: int) -> list[str]:
    """Some writers put no quotes around ``(2,16)``."""
    if at >= len(line) or not line[at].lstrip().startswith("("):
        return line
    end = at
    while end + 1 < len(line) and ")" not in line[end]:
        end += 1
    return [*line[:at], ",".join(line[at : end + 1]), *line[end + 1 :]]


def _statistics(row: dict[str, str]) -> Statistics:
    side = next(row[name] for name in _SIDE if name in row)
    if side not in ("input", "output"):
        raise ValueError(f"IO is {side!r}, not input or output")
    name = FileName(
        op_type=row["op type"],
        op_name=row["op name"],
        task=row["task id"],
        stream=row["stream id"],
        timestamp=_whole(row, "timestamp"),
        side=side,
        slot=_whole(row, "slot"),
        format=row.get("format"),
        dtype=dtype_from_mindspore(row["data type"]),
    )
    found = {own_name: row[reference] for reference, own_name in _NUMBERS.items() if row.get(reference)}
    return Statistics(
        name=name,
        shape=tuple(int(size) for size in re.findall(r"\d+", row["shape"])),
        numbers={own_name: _number(own_name, text) for own_name, text in found.items()},
        digest=next((f"{kind}:{row[column]}" for column, kind in _DIGESTS.items() if row.get(column)), None),
        extra={column: cell for column, cell in row.items() if cell and column not in _KNOWN},
    )


def _whole(row: dict[str, str], column: str) -> int:
    if not row[column].isdecimal():
        raise ValueError(f"{column} is {row[column]!r}, not a whole number")
    return int(row[column])


def _number(name: str, text: str) -> float | int:
    try:
        value = _TRUTH.get(text.lower())
        value = float(text) if value is None else value
        return int(value) if name in _COUNTS else value
    except (ValueError, OverflowError):
        raise ValueError(f"{name} is {text!r}, not a number") from None
