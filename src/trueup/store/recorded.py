"""Tensors of one step of one rank by record: digest, statistics, sketch, values."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np

from trueup.numerics.dtypes import DTYPES, float64_from_array
from trueup.numerics.summary import NOT_FINITE
from trueup.store.reader import StepTables, TraceSource
from trueup.types.arrays import Array, Floats
from trueup.types.trace import SummaryRow

MOST_SAMPLED = 1 << 18
_T = TypeVar("_T")


class RecordedTensors:
    """What a trace holds of each record's tensor; everything is None for a record that is None, and for what
    was not kept."""

    def __init__(self, source: TraceSource, tables: StepTables) -> None:
        self.source, self.tables = source, tables
        self.step, self.rank = tables.step, tables.rank
        self._values: dict[int, Floats | None] = {}
        self._made: dict[Hashable, object] = {}

    def once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What is made of this step, kept under ``key`` as long as the view is."""
        if key not in self._made:
            self._made[key] = make()
        return cast(_T, self._made[key])

    @cached_property
    def content(self) -> list[int | None]:
        """By record: the row of ``summaries``, the same for records of one content."""
        found: list[int | None] = self.tables.records["summary"].to_list()
        return found

    def summary(self, record: int | None) -> SummaryRow | None:
        """The row of ``summaries``."""
        row = None if record is None else self.content[record]
        return None if row is None else self.tables.summary_row(row)

    def is_all_zero(self, record: int | None) -> bool:
        """Whether a tensor holds nothing but zeros; not where there is none. A norm is that of the finite
        numbers."""
        row = self.summary(record)
        return row is not None and row["l2_norm"] == 0 and not any(row.get(name) for name in NOT_FINITE)

    def has_not_finite(self, record: int | None) -> bool:
        """Whether a tensor holds NaN or infinities; not where there is none."""
        row = self.summary(record)
        return row is not None and any(row.get(name) for name in NOT_FINITE)

    def is_one_number(self, record: int | None) -> bool:
        """Whether all elements of a tensor are one finite number."""
        row = self.summary(record)
        if row is None or any(row.get(name) for name in NOT_FINITE):
            return False
        return row["minimum"] is not None and row["minimum"] == row["maximum"]

    def digest(self, record: int | None) -> int | None:
        """64-bit digest."""
        found = self._cell(record, "digest")
        return None if found is None else int(found)

    def norm(self, record: int | None) -> float | None:
        """L2 norm."""
        found = self._cell(record, "l2_norm")
        return None if found is None else float(found)

    def dtype(self, record: int | None) -> str | None:
        """Element type."""
        found = self._cell(record, "dtype")
        return None if found is None else str(found)

    def shape(self, record: int | None) -> tuple[int, ...] | None:
        """Sizes of the dimensions."""
        found = self._cell(record, "shape")
        return None if found is None else tuple(found)

    def sketch(self, record: int | None) -> Floats | None:
        """The 64 numbers of its sketch."""
        found = self._cell(record, "sketch")
        return None if found is None else np.frombuffer(found, "<f4").astype(np.float64)

    def shared_sketch(self, record: int | None) -> Floats | None:
        """The sketch, comparable with that of the same tensor in any run."""
        return self.sketch(record)

    def _cell(self, record: int | None, column: str) -> Any:
        row = None if record is None else self.content[record]
        if row is None:
            return None
        cells = self.once(("column", column), lambda: self.tables.summaries[column].to_list())
        return cells[row]  # of a polars table, one cell after another takes ten times as long

    # -- values ------------------------------------------

    def raw(self, record: int | None) -> tuple[str, Array] | None:
        """Dtype and stored elements as they are (bfloat16 as uint16)."""
        row = self.summary(record)
        stored = None if row is None else self.source.tensor(self.step, self.rank, row)
        if stored is None or stored.dtype not in DTYPES:
            return None
        return stored.dtype, stored.data.view(np.dtype(DTYPES[stored.dtype].storage)).reshape(stored.shape)

    def value(self, record: int | None) -> Floats | None:
        """Values as float64; None for complex ones too."""
        row = None if record is None else self.content[record]
        if row is None:
            return None
        if row not in self._values:
            self._values[row] = self._float64(record)
        return self._values[row]

    def sample(self, record: int | None, limit: int = MOST_SAMPLED) -> Floats | None:
        """Up to ``limit`` of its values, evenly spread and in order; the same places in every tensor of a
        size."""
        found = self.raw(record)
        if found is None or DTYPES[found[0]].kind == "complex":
            return None
        flat = found[1].reshape(-1)
        return float64_from_array(flat[:: max(1, -(-flat.size // limit))], found[0])

    def _float64(self, record: int | None) -> Floats | None:
        found = self.raw(record)
        if found is None or DTYPES[found[0]].kind == "complex":
            return None
        return float64_from_array(found[1], found[0])
