"""Sums and slices over two or more processes that gradients pass through.

Alone in the world each is the identity, so that a model is written once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def rank_and_world() -> tuple[int, int]:
    """This process among how many."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def own_slice(x: Tensor, dim: int) -> Tensor:
    """The part of ``x`` along a dimension that is this rank's."""
    rank, world = rank_and_world()
    return x.chunk(world, dim=dim)[rank].contiguous()


def gathered(x: Tensor, dim: int) -> Tensor:
    """The parts of all ranks, in order."""
    parts = [torch.empty_like(x) for _ in range(rank_and_world()[1])]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=dim)


def summed(x: Tensor) -> Tensor:
    """The sum over all ranks."""
    total = x.contiguous().clone()
    dist.all_reduce(total)
    return total


class Gather(torch.autograd.Function):
    """Parts to whole; what the ranks then compute is each a share, so their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int) -> Tensor:
        """Whole from parts."""
        ctx.dim = dim
        return gathered(part, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The own slice of the sum over ranks."""
        return own_slice(summed(gradients[0]), ctx.dim), None


class GatherForAll(torch.autograd.Function):
    """Parts to whole; what the ranks then compute is the same, so the own slice is the gradient."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int) -> Tensor:
        """Whole from parts."""
        ctx.dim = dim
        return gathered(part, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The own slice."""
        return own_slice(gradients[0], ctx.dim), None


class SumToPart(torch.autograd.Function):
    """The own slice of the sum over ranks, and back."""

    @staticmethod
    def forward(ctx: Any, share: Tensor, dim: int) -> Tensor:
        """Part from shares of the whole."""
        ctx.dim = dim
        return own_slice(summed(share), dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The whole gradient."""
        return gathered(gradients[0], ctx.dim), None


def gather(x: Tensor, dim: int) -> Tensor:
    """``Gather``, or the identity alone in the world."""
    return x if rank_and_world()[1] == 1 else Gather.apply(x, dim)


def gather_for_all(x: Tensor, dim: int) -> Tensor:
    """``GatherForAll``, or the identity alone in the world."""
    return x if rank_and_world()[1] == 1 else GatherForAll.apply(x, dim)


def sum_to_part(x: Tensor, dim: int) -> Tensor:
    """``SumToPart``, or the identity alone in the world."""
    return x if rank_and_world()[1] == 1 else SumToPart.apply(x, dim)
