"""What every kind of recording gives: places, and the arrays that were recorded there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from trueup.types.arrays import Array

Arrays = dict[str, Array]
"""one microbatch of one rank: ``tokens`` (B, T) integers, and where they were recorded ``labels`` and
``loss_mask`` (B, T), ``attention_mask``, ``position_ids`` and other inputs under their own names"""

TOKENS, LABELS, LOSS_MASK, ATTENTION_MASK = "tokens", "labels", "loss_mask", "attention_mask"


class BatchPlace(NamedTuple):
    """Where a batch was read; places sort in the order of a run."""

    step: int
    microbatch: int
    rank: int

    def __str__(self) -> str:
        return f"step {self.step}, microbatch {self.microbatch}, rank {self.rank}"


class BatchSource(Protocol):
    """A recording of batches, whoever made it."""

    @property
    def path(self) -> Path:
        """What was opened."""

    @property
    def ignore_index(self) -> int:
        """The label that does not count in the loss."""

    @property
    def places(self) -> list[BatchPlace]:
        """Every microbatch of every rank, in order."""

    def read(self, place: BatchPlace) -> Arrays:
        """The arrays of one place, as they were recorded."""


def is_whole(array: Array) -> bool:
    """Whether it holds integers (a mask of booleans does not)."""
    return bool(np.issubdtype(array.dtype, np.integer))
