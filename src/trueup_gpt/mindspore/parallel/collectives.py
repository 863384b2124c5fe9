"""The collectives that MindSpore has on a CPU, and from them those that it has not. None has a gradient.

``mccl`` sums no float64, scatters no sum and knows no all-to-all: a float64 sum is gathered and added in the
order of ranks, a scattered sum is summed and cut, an all-to-all is sent and received.
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore
from mindspore import Tensor, mint, ops
from mindspore.mint import distributed

from trueup_gpt.mindspore.parallel.mesh import Group


def all_reduce(x: Tensor, group: Group, *, largest: bool = False) -> Tensor:
    """The sum over the group, or the maximum."""
    if x.dtype == mindspore.float64:
        first, *rest = all_gather(x, group)
        for one in rest:
            first = mint.maximum(first, one) if largest else first + one
        return first
    found = x.copy()
    distributed.all_reduce(found, op="max" if largest else "sum", group=group.name)
    return found


def all_gather(x: Tensor, group: Group) -> list[Tensor]:
    """What every process of the group has, in order of rank; all of one shape."""
    found = [ops.zeros(x.shape, x.dtype) for _ in group.ranks]
    distributed.all_gather(found, x.contiguous(), group=group.name)
    return found


def exchange(parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], group: Group) -> list[Tensor]:
    """Part k goes to process k of the group; returns what came from each, of the given shapes."""
    for number, part in enumerate(parts):
        if number != group.rank and part.size:
            send(part, group.ranks[number])
    found = []
    for number, shape in enumerate(shapes):
        if number == group.rank:
            found.append(parts[number])
        elif 0 in shape:
            found.append(ops.zeros(shape, parts[number].dtype))
        else:
            found.append(receive(shape, parts[number].dtype, group.ranks[number]))
    return found


def send(x: Tensor, rank: int) -> None:
    """To a process, by its rank in the world; returns before that receives it."""
    distributed.isend(x.contiguous(), rank, group=None)


def receive(shape: Sequence[int], dtype: mindspore.Type, rank: int) -> Tensor:
    """From a process, in the order in which it sent."""
    found = ops.zeros(tuple(shape), dtype)
    distributed.irecv(found, rank, group=None).wait()
    return found
