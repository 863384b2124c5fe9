"""Columns of the step under way, in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from trueup.numerics.summary import HAS_DIGEST, SUMMARY_DTYPE
from trueup.store import RunWriter, StepColumns
from trueup.store.schema import CALLS, FORCED, RECORDS

_Facts = tuple[str, tuple[int, ...], str, "str | None"]
"""dtype, shape, device, placement: few are distinct, so rows hold their number"""
_Kind = tuple[int, dict[int, int]]
"""number of such facts, and the rows that have them by digest"""
_BLOCK_ROWS = 1024
_ROW_BYTES = SUMMARY_DTYPE.itemsize
_CALL_COLUMNS = [f.name for f in CALLS if f.name != "call"]
_RECORD_COLUMNS = [f.name for f in RECORDS]
_FORCED_COLUMNS = [f.name for f in FORCED]


class Recorder:
    """Collects one step of one rank.

    Calls and records are lists of tuples in schema order, because appending a tuple is the cheapest thing
    Python can do; they turn into columns when the step ends. Summaries live in blocks that never move, so
    that a kernel can write into a row while others are added.
    """

    def __init__(self, writer: RunWriter, step: int, *, digest: bool = True) -> None:
        """``digest``: whether digests are kept; an adapter may take some to tell what is alike."""
        self._not_kept = 0 if digest else HAS_DIGEST
        self.calls: list[tuple[Any, ...]] = []
        self.records: list[tuple[Any, ...]] = []
        self.stacks: dict[int, list[str]] = {}
        self.forced: list[tuple[Any, ...]] | None = None
        """what a replay put in place of the program's values; None where nothing is replayed"""
        self.step = step
        self._writer = writer
        self.address = 0
        """memory address of the row the next ``commit`` or ``keep`` takes, for the kernel to write to"""
        self._blocks: list[np.ndarray[Any, Any]] = []
        self._digest = memoryview(b"")
        self._capacity = 0
        self._rows = 0
        self._kinds: dict[_Facts, _Kind] = {}
        self._kind_of: list[int] = []
        self._tensors: dict[int, tuple[int, str]] = {}
        self._grow()

    def commit(self, dtype: str, shape: tuple[int, ...], placement: str | None) -> int:
        """Number of the row just written at ``address`` (a CPU tensor, with its digest).

        An earlier row with the same dtype, shape and digest is returned in its place, the new one dropped.
        """
        facts = (dtype, shape, "cpu", placement)
        number, rows = self._kinds.get(facts) or self._new_kind(facts)
        row = self._rows
        first = rows.setdefault(self._digest[row % _BLOCK_ROWS], row)
        if first == row:
            self._take(number)
        return first

    def keep(self, dtype: str, shape: tuple[int, ...], device: str, placement: str | None) -> int:
        """Number of the row just written at ``address``, or to be written later, whatever it holds."""
        facts = (dtype, shape, device, placement)
        number, _ = self._kinds.get(facts) or self._new_kind(facts)
        self._take(number)
        return self._rows - 1

    def _take(self, kind: int) -> None:
        self._kind_of.append(kind)
        self._rows += 1
        self.address += _ROW_BYTES
        if self._rows == self._capacity:
            self._grow()

    def _new_kind(self, facts: _Facts) -> _Kind:
        dtype, shape, device, placement = facts
        plain = (dtype, tuple(shape), device, placement)
        kind = self._kinds[plain] = len(self._kinds), {}
        return kind

    def view(self, row: int) -> Any:
        """The row as a numpy void, to read and write its fields."""
        return self._blocks[row // _BLOCK_ROWS][row % _BLOCK_ROWS]

    def _grow(self) -> None:
        block = np.zeros(_BLOCK_ROWS, SUMMARY_DTYPE)
        self._blocks.append(block)
        self._capacity += _BLOCK_ROWS
        self.address = block.ctypes.data
        digests: Any = block["digest"]
        self._digest = memoryview(digests)

    def store_values(self, row: int, name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        """Append contiguous values to the step's chunk files."""
        key = f"{row}:{name}"
        self._tensors[row] = (self._writer.chunks(self.step).write(key, dtype, shape, data), key)

    def has_values(self, row: int) -> bool:
        """Whether the values of a row are on disk already."""
        return row in self._tensors

    def columns(self) -> StepColumns:
        """Everything collected, as columns for the writer."""
        summaries = np.concatenate(self._blocks)[: self._rows] if self._blocks else np.zeros(0, SUMMARY_DTYPE)
        summaries["flags"] &= ~np.uint32(self._not_kept)
        kinds = list(self._kinds)
        facts = [kinds[k] for k in self._kind_of]
        return StepColumns(
            calls=_columns(self.calls, _CALL_COLUMNS),
            records=_columns(self.records, _RECORD_COLUMNS),
            summaries=summaries,
            summary_dtype=[dtype for dtype, _, _, _ in facts],
            summary_shape=[shape for _, shape, _, _ in facts],
            summary_device=[device for _, _, device, _ in facts],
            summary_placement=[placement for _, _, _, placement in facts],
            summary_tensor=self._tensors,
            stacks=self.stacks,
            forced=None if self.forced is None else _columns(self.forced, _FORCED_COLUMNS),
        )

    def local_norm(self, slot: str) -> float | None:
        """L2 norm over this rank's parameter gradients last recorded under ``slot``, None without any."""
        found = (r for r in self.records if r[1] == "param_grad" and r[2] == slot and r[4] is not None)
        last = {record[0]: record[4] for record in found}
        if not last:
            return None
        squares = [float(self.view(row)["l2_norm"]) ** 2 for row in last.values()]
        return float(np.sqrt(np.nansum(squares)))


def _columns(rows: list[tuple[Any, ...]], names: list[str]) -> dict[str, Sequence[Any]]:
    """Column by column: ``zip(*rows)`` holds an iterator for every row, and so many new objects make Python
    look through all of the program's for garbage."""
    return {name: list(map(itemgetter(part), rows)) for part, name in enumerate(names)}
