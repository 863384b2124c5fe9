"""The summaries of one step, one for each distinct content; what the C kernel's ``Rows`` does, by definition.

Rows live in blocks that never move, so that a kernel can write into one while others are added. A row has a
kind, a number that stands for its dtype, shape, device and place: two rows with the same kind and digest are
the same tensor, and one of them is kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trueup.numerics.summary import SUMMARY_DTYPE

BLOCK_ROWS = 256


class Rows:
    """Rows of SUMMARY_DTYPE by number, in the order they came."""

    def __init__(self) -> None:
        self.address = 0
        """where the next row is to be written"""
        self.blocks: tuple[bytearray, ...] = ()
        """BLOCK_ROWS rows each, the last ones not yet written"""
        self._kinds: list[int] = []
        self._seen: dict[tuple[int, int], int] = {}
        self._digests: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._add_block()

    def commit(self, kind: int) -> int:
        """Number of the row at ``address``, or of an earlier one with its kind and digest, which stands for
        it."""
        row = len(self._kinds)
        first = self._seen.setdefault((kind, int(self._digests[row % BLOCK_ROWS])), row)
        return self.keep(kind) if first == row else first

    def keep(self, kind: int) -> int:
        """Number of the row at ``address``, written or to be written later, whatever it holds."""
        self._kinds.append(kind)
        self.address += SUMMARY_DTYPE.itemsize
        if len(self._kinds) % BLOCK_ROWS == 0:
            self._add_block()
        return len(self._kinds) - 1

    def learn(self, kind: int, dtype_code: int, shape: tuple[int, ...]) -> None:
        """Tensors of this dtype and shape are of this kind: only the kernel's ``Source`` asks."""

    @property
    def kinds(self) -> bytes:
        """The kind of every row, as int32."""
        return np.asarray(self._kinds, np.int32).tobytes()

    def __len__(self) -> int:
        return len(self._kinds)

    def _add_block(self) -> None:
        block = bytearray(BLOCK_ROWS * SUMMARY_DTYPE.itemsize)
        rows = np.frombuffer(block, SUMMARY_DTYPE)
        self.blocks, self._digests, self.address = (*self.blocks, block), rows["digest"], rows.ctypes.data
