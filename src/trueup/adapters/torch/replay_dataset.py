"""Recorded batches as a ``torch.utils.data.Dataset``."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

from trueup.adapters import replay_dataset
from trueup.types.arrays import Array


class ReplayDataset(replay_dataset.ReplayDataset, Dataset[object]):
    """Items of tensors on the host, in recorded dtypes (B, T) or (T,).

    Items are whole microbatches: ``DataLoader(dataset, batch_size=None)``. Where they are rows,
    ``DataLoader(dataset, batch_size=B)``. Never with ``shuffle``.
    """

    def _made(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array)
