"""Numbers of the definitions as tensors on a device: made once, grown as needed, bounded."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trueup.numerics import digest as digests
from trueup.numerics import sketch as sketches
from trueup.numerics.dtypes import DTYPES, float64_from_array
from trueup.numerics.summary import SKETCH_SIZE


class Constants:
    """Of one device."""

    def __init__(self, device: torch.device, values: torch.dtype) -> None:
        """``values``: the dtype in which sums are taken there."""
        self._device = device
        signs = np.concatenate([sketches.SIGNS, sketches.SIGNS[: sketches.PERIOD]])
        windows = np.lib.stride_tricks.sliding_window_view(signs, sketches.PERIOD)
        windows = windows
        windows = windows[: len(sketches.SIGNS) : sketches.SIGN_STEP]
        self._values = np.float64 if values is torch.float64 else np.float32
        self.sign_windows = torch.from_numpy(windows.astype(self._values)).to(device)
        """(128, 1024): the signs of a block by where it reads the table"""
        self.buckets = torch.arange(SKETCH_SIZE, device=device)
        self._blocks = torch.zeros(2, 0, dtype=torch.int64, device=device)
        self._powers: dict[int, Tensor] = {}
        self._float8: dict[str, Tensor] = {}

    def powers(self, generator: int, size: int) -> Tensor:
        """``g^0 .. g^(size - 1)`` of one generator, int64."""
        known = self._powers.get(generator)
        if known is None or known.numel() < size:
            length = max(1024, 1 << (size - 1).bit_length())
            table = torch.from_numpy(digests.powers(generator, length).view(np.int64).copy())
            known = self._powers[generator] = table.to(self._device)
        return known[:size]

    def blocks(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Which window of signs each sketch block reads, and by how much it turns its buckets."""
        if self._blocks.shape[1] < last:
            blocks = np.arange(1 << (last - 1).bit_length(), dtype=np.int64)
            windows, turns = sketches.block_places(blocks)
            self._blocks = torch.from_numpy(np.stack([windows, turns])).to(self._device)
        return self._blocks[0, first:last], self._blocks[1, first:last]

    def float8(self, name: str) -> Tensor:
        """The 256 values of an 8-bit format."""
        if name not in self._float8:
            table = float64_from_array(np.arange(256).astype(np.uint8), DTYPES[name].name)
            self._float8[name] = torch.from_numpy(table.astype(self._values)).to(self._device)
        return self._float8[name]
