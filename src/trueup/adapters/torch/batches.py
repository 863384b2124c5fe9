"""Another batch in the place of the program's own: where torch's DataLoaders begin to iterate."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from trueup.adapters.batches import BatchChange, ChangedBatches

_installed: list[bool] = []


def install(current: Callable[[], BatchChange | None]) -> None:
    """Wrap the iterator of every DataLoader, once a process; ``current`` says what is to be changed."""
    if _installed:
        return
    _installed.append(True)
    from torch.utils.data import DataLoader

    original = DataLoader.__iter__

    @functools.wraps(original)
    def iterate(self: DataLoader[object]) -> Any:
        inner, change = original(self), current()
        return inner if change is None else ChangedBatches(change, self, inner)

    DataLoader.__iter__ = iterate  # type: ignore[method-assign]
