"""Rows of a table side by side in one list.

A tuple for every row would be an object that Python's search for garbage counts: with thousands a step it
looks through all that the program holds, again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


class FlatRows:
    """Grows by whole rows, in the order of ``columns``."""

    __slots__ = ("_cells", "append", "columns")

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self._cells: list[Any] = []
        self.append: Callable[[Iterable[Any]], None] = self._cells.extend
        """add one row, with a cell for every column"""

    def __len__(self) -> int:
        return len(self._cells) // len(self.columns)

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        start = row * len(self.columns)
        cells = tuple(self._cells[start : start + len(self.columns)])
        if row < 0 or not cells:
            raise IndexError(f"row {row} of {len(self)}")
        return cells

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.by_column().values(), strict=True)

    def column(self, name: str) -> list[Any]:
        """One column whole, a copy."""
        return self._cells[self.columns.index(name) :: len(self.columns)]

    def by_column(self) -> dict[str, list[Any]]:
        """Every column whole, a copy."""
        return {name: self.column(name) for name in self.columns}
