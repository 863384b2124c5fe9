"""Columns of the step under way, in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from trueup.capture.flat import FlatRows
from trueup.numerics._native import Rows
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.rows import BLOCK_ROWS
from trueup.numerics.summary import HAS_DIGEST, SUMMARY_DTYPE
from trueup.store import RunWriter, StepColumns, SummaryKind
from trueup.store.schema import FORCED
from trueup.types.arrays import Array
from trueup.types.pieces import Pieces
from trueup.types.table_rows import CallRow, RecordRow


class StepRecorder:
    """Collects one step of one rank.

    Calls and records are flat lists of cells in schema order, because that is the cheapest thing Python can
    do; they turn into columns when the step ends.
    """

    def __init__(
        self, writer: RunWriter, step: int, *, digest: bool = True, counts_values: bool = False
    ) -> None:
        """``digest``: whether digests are kept; an adapter may take some to tell what is alike.
        ``counts_values``: values are counted, and no byte of them is read or written."""
        self._not_kept = 0 if digest else HAS_DIGEST
        self.calls = FlatRows(CallRow)
        self.records = FlatRows(RecordRow)
        self.stacks: dict[int, list[str]] = {}
        self.forced: list[tuple[object, ...]] | None = None
        """what a replay put in place of the program's values; None where nothing is replayed"""
        self.step = step
        self.counts_values = counts_values
        self._writer = writer
        self.rows = Rows()
        self._kinds: dict[SummaryKind, int] = {}
        self._tensors: dict[int, tuple[int, str]] = {}

    def commit(self, address: int, dtype: str, shape: tuple[int, ...], placement: str | None) -> int:
        """Number of the row with the summary a kernel has written at ``address`` (of a CPU tensor, with its
        digest).

        An earlier row with the same dtype, shape and digest is returned where there is one.
        """
        return self.rows.commit(self._kind(dtype, shape, "cpu", placement), address)

    def keep(
        self, address: int, dtype: str, shape: tuple[int, ...], device: str, placement: str | None
    ) -> int:
        """Number of a new row with the summary at ``address``, or of one to be written later where that is
        0."""
        return self.rows.keep(self._kind(dtype, shape, device, placement), address)

    def _kind(self, dtype: str, shape: tuple[int, ...], device: str, placement: str | None) -> int:
        number = self._kinds.get((dtype, shape, device, placement))
        if number is None:
            plain, number = tuple(shape), len(self._kinds)
            self._kinds[dtype, plain, device, placement] = number
            if device == "cpu" and placement is None:
                self.rows.learn(number, DTYPES[dtype].code, plain)
        return number

    def view(self, row: int) -> np.void:
        """The row as a numpy void, to read and write its fields."""
        found: np.void = _rows_of(self.rows.blocks[row // BLOCK_ROWS])[row % BLOCK_ROWS]
        return found

    def put(self, rows: NDArray[np.int64], summaries: Array) -> None:
        """Write rows that were kept empty."""
        blocks, number = self.rows.blocks, rows // BLOCK_ROWS
        for block in np.unique(number):
            here = number == block
            _rows_of(blocks[block])[rows[here] % BLOCK_ROWS] = summaries[here]

    def store_values(
        self, row: int, name: str, dtype: str, shape: tuple[int, ...], data: memoryview | Pieces
    ) -> None:
        """Append contiguous values to the step's chunk files, where the trace may grow that much."""
        key = f"{row}:{name}"
        if self.counts_values:
            self._tensors[row] = 0, key
        elif self._writer.has_room(self.step, data.nbytes):
            self._tensors[row] = (self._writer.chunks(self.step).write(key, dtype, shape, data), key)

    def has_values(self, row: int) -> bool:
        """Whether the values of a row are on disk already."""
        return row in self._tensors

    def columns(self) -> StepColumns:
        """Everything collected, as columns for the writer."""
        summaries = np.concatenate([_rows_of(block) for block in self.rows.blocks])[: len(self.rows)]
        summaries["flags"] &= ~np.uint32(self._not_kept)
        return StepColumns(
            calls=self.calls.by_column(),
            records=self.records.by_column(),
            summaries=summaries,
            kinds=list(self._kinds),
            summary_kind=np.frombuffer(self.rows.kinds, np.int32),
            summary_tensor=self._tensors,
            stacks=self.stacks,
            forced=None if self.forced is None else _columns(self.forced),
        )

    def local_norm(self, slot: str) -> float | None:
        """L2 norm over this rank's parameter gradients last recorded under ``slot``, None without any."""
        records = self.records.column("slot"), self.records.column("phase")
        found = [self.records[at] for at in _places(slot, records[0]) if records[1][at] == "param_grad"]
        last = {record.call: record.summary for record in found if record.summary is not None}
        if not last:
            return None
        squares = [float(self.view(row)["l2_norm"]) ** 2 for row in last.values()]
        return float(np.sqrt(np.nansum(squares)))


def _columns(forced: list[tuple[object, ...]]) -> dict[str, list[object]]:
    return {column.name: [row[at] for row in forced] for at, column in enumerate(FORCED)}


def _places(wanted: str, values: list[str]) -> Iterator[int]:
    """Where the word is, by a search that looks at most of the list in C."""
    at = -1
    with suppress(ValueError):
        while True:
            at = values.index(wanted, at + 1)
            yield at


def _rows_of(block: bytearray) -> Array:
    return np.frombuffer(block, SUMMARY_DTYPE)
