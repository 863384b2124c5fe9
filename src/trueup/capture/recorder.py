"""Columns of the step under way, in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from trueup.numerics.summary import SUMMARY_DTYPE
from trueup.store import RunWriter, StepColumns
from trueup.store.schema import CALLS, RECORDS

_BLOCK_ROWS = 4096
_ROW_BYTES = SUMMARY_DTYPE.itemsize
_DIGEST = SUMMARY_DTYPE.fields["digest"][1] if SUMMARY_DTYPE.fields else 0
_CALL_COLUMNS = [f.name for f in CALLS if f.name != "call"]
_RECORD_COLUMNS = [f.name for f in RECORDS]


class Recorder:
    """Collects one step of one rank.

    Calls and records are lists of tuples in schema order, because appending a tuple is the cheapest thing Python
    can do; they turn into columns when the step ends. Summaries live in blocks that never move, so that a kernel
    can write into a row while others are added.
    """

    def __init__(self, writer: RunWriter, step: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.records: list[tuple[Any, ...]] = []
        self.stacks: dict[int, list[str]] = {}
        self._writer = writer
        self._step = step
        self._blocks: list[np.ndarray[Any, Any]] = []
        self._digests: list[memoryview] = []
        self._addresses: list[int] = []
        self._rows = 0
        self._facts: list[tuple[str, tuple[int, ...], str, str | None]] = []
        self._tensors: dict[int, tuple[int, str]] = {}
        self._by_content: dict[tuple[int, str, tuple[int, ...]], int] = {}

    def new_summary(self, dtype: str, shape: tuple[int, ...], device: str, placement: str | None) -> int:
        """Reserve one row of summaries and return its number."""
        row = self._rows
        if row == len(self._blocks) * _BLOCK_ROWS:
            block = np.zeros(_BLOCK_ROWS, SUMMARY_DTYPE)
            self._blocks.append(block)
            self._addresses.append(block.ctypes.data)
            self._digests.append(memoryview(block.view("<u8").reshape(_BLOCK_ROWS, -1)[:, _DIGEST // 8]))
        self._facts.append((dtype, shape, device, placement))
        self._rows = row + 1
        return row

    def address(self, row: int) -> int:
        """Memory address of a row, for the kernel to write to."""
        return self._addresses[row // _BLOCK_ROWS] + (row % _BLOCK_ROWS) * _ROW_BYTES

    def view(self, row: int) -> Any:
        """The row as a numpy void, to read and write its fields."""
        return self._blocks[row // _BLOCK_ROWS][row % _BLOCK_ROWS]

    def keep_first(self, row: int) -> int:
        """If an earlier row has the same dtype, shape and digest, give ``row`` back and return the earlier one.

        Only the newest row can be given back.
        """
        dtype, shape, _, _ = self._facts[row]
        digest = self._digests[row // _BLOCK_ROWS][row % _BLOCK_ROWS]
        first = self._by_content.setdefault((digest, dtype, shape), row)
        if first != row and row == self._rows - 1:
            self._rows = row
            self._facts.pop()
            return first
        return row

    def store_values(self, row: int, name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        """Append contiguous values to the step's chunk files."""
        key = f"{row}:{name}"
        self._tensors[row] = (self._writer.chunks(self._step).write(key, dtype, shape, data), key)

    def has_values(self, row: int) -> bool:
        """Whether the values of a row are on disk already."""
        return row in self._tensors

    def columns(self) -> StepColumns:
        """Everything collected, as columns for the writer."""
        summaries = np.concatenate(self._blocks)[: self._rows] if self._blocks else np.zeros(0, SUMMARY_DTYPE)
        facts = list(zip(*self._facts, strict=True)) or [(), (), (), ()]
        return StepColumns(
            calls=_columns(self.calls, _CALL_COLUMNS),
            records=_columns(self.records, _RECORD_COLUMNS),
            summaries=summaries,
            summary_dtype=list(facts[0]),
            summary_shape=list(facts[1]),
            summary_device=list(facts[2]),
            summary_placement=list(facts[3]),
            summary_tensor=self._tensors,
            stacks=self.stacks,
        )

    def local_norm(self, slot: str) -> float | None:
        """L2 norm over this rank's parameter gradients last recorded under ``slot``, None if there is none."""
        last = {r[0]: r[4] for r in self.records if r[1] == "param_grad" and r[2] == slot and r[4] is not None}
        if not last:
            return None
        squares = [float(self.view(row)["l2_norm"]) ** 2 for row in last.values()]
        return float(np.sqrt(np.nansum(squares)))


def _columns(rows: list[tuple[Any, ...]], names: list[str]) -> dict[str, list[Any]]:
    if not rows:
        return {name: [] for name in names}
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


