"""Recorded batches as a ``torch.utils.data.Dataset``."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from trueup.adapters import replay_dataset


class ReplayDataset(replay_dataset.ReplayDataset, Dataset[Any]):
    """Items of tensors on the host, in recorded dtypes (B, T) or (T,).

    Items are whole microbatches: ``DataLoader(dataset, batch_size=None)``. Where they are rows,
    ``DataLoader(dataset, batch_size=B)``. Never with ``shuffle``.
    """

    def _made(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array)
