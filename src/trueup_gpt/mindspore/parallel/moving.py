"""Moving a tensor from one placement along a mesh axis to another.

`trueup.Shard`, `Replicate`, `Invariant` and `Partial` say where its parts are. The gradient of a tensor is
placed dually, so one function moves forward and backward. Of a parameter, Replicate says that its gradient
must be summed.
"""

from __future__ import annotations

from mindspore import Tensor, _Function, mint, ops

from trueup import Partial, Placement, Shard, gradient_of, part_of
from trueup_gpt.mindspore.parallel.collectives import all_gather, all_reduce, exchange
from trueup_gpt.mindspore.parallel.mesh import Group


class _Move(_Function):
    @staticmethod
    def forward(ctx: _Function, x: Tensor, have: Placement, need: Placement, group: Group) -> Tensor:
        ctx.moved = have, need, group
        return moved(x, have, need, group)

    @staticmethod
    def backward(ctx: _Function, gradient: Tensor) -> tuple[Tensor | None, ...]:
        have, need, group = ctx.moved
        return moved(gradient, gradient_of(need), gradient_of(have), group), None, None, None


def move(x: Tensor, have: Placement, need: Placement, group: Group) -> Tensor:
    """``x``, placed as ``have`` over the group, placed as ``need``; differentiable."""
    return x if have == need else _Move.apply(x, have, need, group)


def moved(x: Tensor, have: Placement, need: Placement, group: Group) -> Tensor:
    """As ``move``, without a gradient. The sum over the group where ``have`` is Partial and ``need`` is not.

    Raises:
        NotImplementedError: from whole or part to a term; nothing here needs that.
    """
    if isinstance(have, Shard):
        return _shard_to_shard(x, have, need, group) if isinstance(need, Shard) else _gather(x, have, group)
    if isinstance(need, Shard):
        return own_part(all_reduce(x, group) if isinstance(have, Partial) else x, need, group)
    if isinstance(need, Partial) and not isinstance(have, Partial):
        raise NotImplementedError(f"{have} to {need}")
    if isinstance(have, Partial) and not isinstance(need, Partial):
        return all_reduce(x, group)
    return x.copy()


def own_part(x: Tensor, need: Shard, group: Group) -> Tensor:
    """Of the whole."""
    start, size = part_of(x.shape[need.dim], group.size, group.rank)
    return mint.narrow(x, need.dim % x.ndim, start, size).contiguous()


def _gather(x: Tensor, have: Shard, group: Group) -> Tensor:
    """All parts, in order of rank. Uneven parts are padded on their way."""
    dim, size = have.dim % x.ndim, group.size
    if have.total is None or have.total % size == 0:
        return mint.cat(all_gather(x, group), dim)
    lengths = [part_of(have.total, size, index)[1] for index in range(size)]
    if x.shape[dim] < max(lengths):
        shape = (*x.shape[:dim], max(lengths) - x.shape[dim], *x.shape[dim + 1 :])
        x = mint.cat((x, ops.zeros(shape, x.dtype)), dim)
    parts = all_gather(x, group)
    return mint.cat(
        [mint.narrow(one, dim, 0, length) for one, length in zip(parts, lengths, strict=True)], dim
    )


def _shard_to_shard(x: Tensor, have: Shard, need: Shard, group: Group) -> Tensor:
    """A part of one dim for a part of another: an all-to-all."""
    if have.dim % x.ndim == need.dim % x.ndim:
        return x.copy()
    parts = [one.contiguous() for one in mint.chunk(x, group.size, need.dim)]
    return mint.cat(exchange(parts, [one.shape for one in parts], group), have.dim)
