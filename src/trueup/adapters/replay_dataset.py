"""A data set of recorded items, as plain numpy; what the frameworks' own have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from trueup.types.arrays import Array

Item = dict[str, Array] | tuple[Array, ...]


class Items(Protocol):
    """What is replayed: items in their order, made when asked for."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of an item's arrays, in order."""

    @property
    def places(self) -> Sequence[tuple[int, int, int]]:
        """Step, microbatch and rank of each item."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int) -> Item:
        """The item of this number, counted from 0."""


class ReplayDataset:
    """Items by number: ``dataset[i]`` is a dict of arrays, or a tuple where columns were asked for in order.

    The same item read twice is equal and shares no memory.

    Raises:
        IndexError: there is no such item; a ``for`` loop ends by it.
    """

    def __init__(self, items: Items) -> None:
        self.items = items

    @property
    def places(self) -> Sequence[tuple[int, int, int]]:
        """Step, microbatch and rank of each item."""
        return self.items.places

    def __len__(self) -> int:
        """Number of items."""
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        """The item of this number; negative ones count from the end."""
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"item {index} of a recording of {len(self)}")
        found = self.items[number]
        if isinstance(found, Mapping):
            return {name: self._made(array) for name, array in found.items()}
        return tuple(self._made(array) for array in found)

    def __iter__(self) -> Iterator[Any]:
        """Items in the order of the recording."""
        return (self[number] for number in range(len(self)))

    def _made(self, array: Array) -> Any:
        return array
