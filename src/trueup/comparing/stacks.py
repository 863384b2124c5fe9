"""Call stacks of all steps of one trace under one numbering."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

MAX_STACKS = 20_000


@dataclass(slots=True)
class StackBook:
    """Distinct stacks in the order they were first met; beyond MAX_STACKS none is added."""

    frames: list[list[str]] = field(default_factory=list)
    _index: dict[tuple[str, ...], int] = field(default_factory=dict)

    def numbers(self, stacks: pl.DataFrame) -> NDArray[np.int64]:
        """For each stack number of one step its number here; -1 for unknown ones, which is also the last
        entry."""
        size = int(stacks["stack"].max() or 0) + 2 if stacks.height else 1  # type: ignore[arg-type]
        out = np.full(size, -1, np.int64)
        for number, frames in stacks.select("stack", "frames").iter_rows():
            key = tuple(frames or ())
            if key not in self._index and len(self.frames) < MAX_STACKS:
                self._index[key] = len(self.frames)
                self.frames.append(list(key))
            out[number] = self._index.get(key, -1)
        return out
