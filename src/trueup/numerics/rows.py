"""The summaries of one step, one for each distinct content; what the C kernel's ``Rows`` does, by definition.

Rows live in blocks that never move. A row has a kind, a number that stands for its dtype, shape, device and
place: two rows with the same kind and digest are the same tensor, and one of them is kept.
"""

from __future__ import annotations

import ctypes

import numpy as np

from trueup.numerics.summary import SUMMARY_DTYPE

BLOCK_ROWS = 256
_ROW_BYTES = SUMMARY_DTYPE.itemsize


class Rows:
    """Rows of SUMMARY_DTYPE by number, in the order they came."""

    def __init__(self) -> None:
        self.blocks: tuple[bytearray, ...] = ()
        """BLOCK_ROWS rows each, the last ones not yet written"""
        self._kinds: list[int] = []
        self._seen: dict[tuple[int, int], int] = {}

    def commit(self, kind: int, address: int) -> int:
        """Number of a row with what is written at ``address``, or of an earlier one with the same kind and
        digest, which stands for it."""
        digest = np.frombuffer(ctypes.string_at(address, _ROW_BYTES), SUMMARY_DTYPE)["digest"]
        first = self._seen.setdefault((kind, int(digest[0])), len(self._kinds))
        return self.keep(kind, address) if first == len(self._kinds) else first

    def keep(self, kind: int, address: int) -> int:
        """Number of a new row with what is written at ``address``, or of zeros where that is 0."""
        row = len(self._kinds)
        if row % BLOCK_ROWS == 0:
            self.blocks += (bytearray(BLOCK_ROWS * _ROW_BYTES),)
        if address:
            start = row % BLOCK_ROWS * _ROW_BYTES
            self.blocks[-1][start : start + _ROW_BYTES] = ctypes.string_at(address, _ROW_BYTES)
        self._kinds.append(kind)
        return row

    def learn(self, kind: int, dtype_code: int, shape: tuple[int, ...]) -> None:
        """Tensors of this dtype and shape are of this kind: only the kernel's ``Source`` asks."""

    @property
    def kinds(self) -> bytes:
        """The kind of every row, as int32."""
        return np.asarray(self._kinds, np.int32).tobytes()

    def __len__(self) -> int:
        return len(self._kinds)
