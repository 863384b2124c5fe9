"""Task ``overflow_check`` for MindSpore: summaries are taken on the host, so every row is written already."""

from __future__ import annotations

from mindspore import Tensor, nn

from trueup.adapters import overflow
from trueup.numerics.not_finite import Count


class OverflowWatch(overflow.OverflowWatch[nn.Cell, Tensor]):
    """Looks at every record of the step under way."""

    def _inexact(self, tensor: Tensor) -> bool:
        return bool(tensor.is_floating_point() or tensor.is_complex())

    def _address(self, tensor: Tensor) -> int:
        return int(tensor.data_ptr()) if tensor.size else 0

    def _count(self, row: int, tensor: Tensor) -> Count:
        return self._counted(row)
