"""Recorded batches as MindSpore tensors, and as a ``GeneratorDataset``."""

from __future__ import annotations

import mindspore
import numpy as np
from mindspore.dataset import GeneratorDataset

from trueup.adapters import replay_dataset
from trueup.types.arrays import Array


class ReplayDataset(replay_dataset.ReplayDataset):
    """Items of ``mindspore.Tensor``, in recorded dtypes (B, T) or (T,); a loop may run over it as it is."""

    def _made(self, array: Array) -> mindspore.Tensor:
        return mindspore.Tensor(array)

    def generator_dataset(self) -> GeneratorDataset:
        """The same items in the same order as a MindSpore pipeline, for ``Model.train`` and its kin.

        Columns are ``items.names``. Items that are microbatches are batches already; batch rows with
        ``.batch(B)``.
        """
        return GeneratorDataset(
            _Source(self.items), list(self.items.names), shuffle=False, num_parallel_workers=1
        )


class _Source:
    """What MindSpore reads from: rows of numpy arrays by number."""

    def __init__(self, items: replay_dataset.Items) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> tuple[Array, ...]:
        found = self._items[int(index)]
        arrays = found.values() if isinstance(found, dict) else found
        return tuple(np.ascontiguousarray(array) for array in arrays)
