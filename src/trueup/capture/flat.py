"""Rows of a table side by side in one list.

A tuple for every row would be an object that Python's search for garbage counts: with thousands a step it
looks through all that the program holds, again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from trueup.types.table_rows import CallRow, RecordRow

Row = TypeVar("Row", CallRow, RecordRow)


class FlatRows(Generic[Row]):
    """Grows by complete rows, with a cell for every field of ``row``."""

    __slots__ = ("_at", "_cells", "_row", "append", "columns")

    def __init__(self, row: type[Row]) -> None:
        self._row: type[Row] = row
        self._at = {name: at for at, name in enumerate(row._fields)}
        self.columns: tuple[str, ...] = row._fields
        self._cells: list[object] = []
        self.append: Callable[[Iterable[object]], None] = self._cells.extend
        """add one row, with a cell for every column"""

    def __len__(self) -> int:
        return len(self._cells) // len(self.columns)

    def __getitem__(self, row: int) -> Row:
        start = row * len(self.columns)
        cells = self._cells[start : start + len(self.columns)]
        if row < 0 or not cells:
            raise IndexError(f"row {row} of {len(self)}")
        found: Row = tuple.__new__(
            self._row, cells
        )  # _make checks the length, which is right by construction
        return found

    def cell(self, row: int, column: str) -> Any:
        """One cell: cheaper than its row, for what runs at every tensor."""
        return self._cells[row * len(self.columns) + self._at[column]]

    def put(self, row: int, column: str, value: object) -> None:
        """Another value in one cell."""
        self._cells[row * len(self.columns) + self._at[column]] = value

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        return zip(*self.by_column().values(), strict=True)

    def column(self, name: str) -> list[Any]:
        """A copy of one column."""
        return self._cells[self.columns.index(name) :: len(self.columns)]

    def by_column(self) -> dict[str, list[object]]:
        """A copy of every column."""
        return {name: self.column(name) for name in self.columns}
