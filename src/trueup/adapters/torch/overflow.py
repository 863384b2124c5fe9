"""Task ``overflow_check`` for torch: how a tensor is asked whether its values are finite."""

from __future__ import annotations

import torch
from torch import Tensor

from trueup.adapters import overflow
from trueup.numerics._native import AVAILABLE
from trueup.numerics.not_finite import Count


class OverflowWatch(overflow.OverflowWatch[torch.nn.Module, torch.Tensor]):
    """Looks at every record of the step under way."""

    def _inexact(self, tensor: Tensor) -> bool:
        return tensor.is_floating_point() or tensor.is_complex()

    def _address(self, tensor: Tensor) -> int:
        return tensor.data_ptr()

    def _count(self, row: int, tensor: Tensor) -> Count:
        """From the row where it is written at once (on the CPU), else by waiting for the device."""
        if tensor.is_cpu and AVAILABLE:
            return self._counted(row)
        with torch.no_grad():
            if bool(torch.isfinite(tensor).all()):
                return Count(num_nan=0, num_posinf=0, num_neginf=0, lowest=_lowest(tensor))
            real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            masks = torch.isnan(real), torch.isposinf(real), torch.isneginf(real)
            nan, positive, negative = (int(mask.sum()) for mask in masks)
        return Count(num_nan=nan, num_posinf=positive, num_neginf=negative, lowest=0.0)


def _lowest(tensor: Tensor) -> float:
    return float(tensor.min()) if tensor.numel() and not tensor.is_complex() else 0.0
