"""Moving a tensor from one placement along a mesh axis to another.

`trueup.Shard`, `Replicate`, `Invariant` and `Partial` say where its parts are. The gradient of a tensor is
placed dually, so one function moves forward and backward. Of a parameter, Replicate says that its gradient
must be summed.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from trueup import Partial, Placement, Shard, gradient_of, part_of

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""one tensor in, one out; torch 2.13 gave both new names"""


class _Moved(Protocol):
    moved: tuple[Placement, Placement, dist.ProcessGroup]


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Moved, x: Tensor, have: Placement, need: Placement, group: dist.ProcessGroup) -> Tensor:
        ctx.moved = have, need, group
        return moved(x, have, need, group)

    @staticmethod
    def backward(ctx: _Moved, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        have, need, group = ctx.moved
        return moved(gradients[0], gradient_of(need), gradient_of(have), group), None, None, None


def move(x: Tensor, have: Placement, need: Placement, group: dist.ProcessGroup) -> Tensor:
    """``x``, placed as ``have`` over the group, placed as ``need``; differentiable."""
    if have == need:
        return x
    return _Move.apply(x, have, need, group)


def moved(x: Tensor, have: Placement, need: Placement, group: dist.ProcessGroup) -> Tensor:
    """As ``move``, without a gradient. The sum over the group where ``have`` is Partial and ``need`` is not.

    Raises:
        NotImplementedError: from whole or part to a term; nothing here needs that.
    """
    if isinstance(have, Shard):
        return _shard_to_shard(x, have, need, group) if isinstance(need, Shard) else _gather(x, have, group)
    if isinstance(need, Shard):
        return _reduce_scatter(x, need, group) if isinstance(have, Partial) else _own_part(x, need, group)
    if isinstance(need, Partial) and not isinstance(have, Partial):
        raise NotImplementedError(f"{have} to {need}")
    if isinstance(have, Partial) and not isinstance(need, Partial):
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=group)
        return x
    return x.view_as(x)


def _lengths(whole: int, group: dist.ProcessGroup) -> list[int]:
    size = dist.get_world_size(group)
    return [part_of(whole, size, index)[1] for index in range(size)]


def _own_part(x: Tensor, need: Shard, group: dist.ProcessGroup) -> Tensor:
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    return x.narrow(need.dim, *part_of(x.shape[need.dim], size, rank)).contiguous()


def _gather(x: Tensor, have: Shard, group: dist.ProcessGroup) -> Tensor:
    """All parts, in order of rank. Uneven parts are padded on their way."""
    size = dist.get_world_size(group)
    first = x.movedim(have.dim, 0)
    if have.total is None or have.total % size == 0:
        out = first.new_empty((size * first.shape[0], *first.shape[1:]))
        all_gather(out, first.contiguous(), group=group)
        return out.movedim(0, have.dim).contiguous()
    lengths = _lengths(have.total, group)
    padded = first.new_zeros((max(lengths), *first.shape[1:]))
    padded[: first.shape[0]] = first
    out = padded.new_empty((size * max(lengths), *first.shape[1:]))
    all_gather(out, padded, group=group)
    parts = out.split(max(lengths))
    whole = torch.cat([one[:length] for one, length in zip(parts, lengths, strict=True)])
    return whole.movedim(0, have.dim).contiguous()


def _reduce_scatter(x: Tensor, need: Shard, group: dist.ProcessGroup) -> Tensor:
    size = dist.get_world_size(group)
    first = x.movedim(need.dim, 0).contiguous()
    if first.shape[0] % size:
        dist.all_reduce(first, group=group)
        return _own_part(first, Shard(0), group).movedim(0, need.dim).contiguous()
    out = first.new_empty((first.shape[0] // size, *first.shape[1:]))
    reduce_scatter(out, first, group=group)
    return out.movedim(0, need.dim).contiguous()


def _shard_to_shard(x: Tensor, have: Shard, need: Shard, group: dist.ProcessGroup) -> Tensor:
    """A part of one dim for a part of another: an all-to-all."""
    if have.dim == need.dim:
        return x.view_as(x)
    size = dist.get_world_size(group)
    sent = torch.stack(x.chunk(size, dim=need.dim)).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(list(received), dim=have.dim)
