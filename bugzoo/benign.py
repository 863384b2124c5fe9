"""Changes that are no fault: what differs after them is rounding, and must not be reported as more."""

from __future__ import annotations

import torch

from bugzoo.catalogue import BENIGN, Training, benign

__all__ = ["BENIGN"]


@benign("repeat", summary="the same run again")
def repeat(training: Training) -> None:
    """Change nothing."""


@benign("two-threads", summary="two threads for one: sums in another order")
def two_threads(training: Training) -> None:
    """Set the number of threads."""
    torch.set_num_threads(2)


@benign("chunk-for-split", summary="chunk with contiguous copies for split")
def chunk_for_split(training: Training) -> None:
    """Other calls, the same mathematics."""
    for block in training.model.layers:
        block.attn.split_by_chunk = True
