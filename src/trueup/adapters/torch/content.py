"""The content hash of a tensor (``numerics.content``) by torch operations, on the tensor's own device."""

from __future__ import annotations

import torch
from torch import Tensor

from trueup.adapters.torch.memory import in_transform, is_freed
from trueup.numerics.content import FIRST, SECOND

_BLOCK = 1 << 16
_LARGE_BLOCK = 1 << 20
"""elements at a time on other devices, where starting an operation costs more than running it: 36 MB"""


def content_total(tensor: Tensor) -> Tensor | None:
    """The hash on the tensor's device, int64 of no dims; None for what has no plain values of its own."""
    local = getattr(tensor, "_local_tensor", None)
    if local is not None or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
        return None
    if not tensor.dtype.is_floating_point or hasattr(tensor, "fake_mode"):
        return None
    if in_transform(tensor) or is_freed(tensor):
        return None
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        size = _BLOCK if flat.is_cpu else _LARGE_BLOCK
        total = torch.zeros((), dtype=torch.int64, device=flat.device)
        for block in flat.split(size):
            total += _scrambled(block).sum()
        return total


def unsigned(total: Tensor) -> int:
    """The hash as a number; waits for the device."""
    return int(total.item()) & 0xFFFFFFFFFFFFFFFF


def _scrambled(block: Tensor) -> Tensor:
    bits = (block.to(torch.float32) + 0.0).view(torch.int32).to(torch.int64)
    mixed = bits.bitwise_and_(0xFFFFFFFF).mul_(_signed(FIRST))
    mixed ^= (mixed >> 32).bitwise_and_(0xFFFFFFFF)
    mixed.mul_(_signed(SECOND))
    mixed ^= (mixed >> 29).bitwise_and_((1 << 35) - 1)
    return mixed


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
