"""A causal transformer whose ranks have a part of every sequence, and say nothing of it.

Ranks may be several groups that read other rows (data parallelism); gradients are then reduced by hand, by
DDP or by FSDP2.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import trueup
from trueup.capture.declared import withdraw_layout

VOCABULARY, WIDTH, HEADS, LENGTH, ROWS = 96, 32, 4, 16, 4


@dataclass(frozen=True)
class Ring:
    """The ranks that share the sequences of this process, its place among them, and the order of the
    pieces."""

    group: Any = None
    rank: int = 0
    size: int = 1
    order: str = ""


class Gathered(torch.autograd.Function):
    """Parts of all ranks in the order of the sequence; gradients of all ranks are summed and cut again."""

    @staticmethod
    def forward(context: Any, x: Tensor, ring: Ring, summed: bool) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(ring.size)]
        dist.all_gather(parts, x.contiguous(), group=ring.group)
        context.ring, context.summed = ring, summed
        return joined(parts, ring.order)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ring, whole = context.ring, gradient.contiguous().clone()
        dist.all_reduce(whole, group=ring.group)
        whole = whole if context.summed else gradient
        return part(whole, ring.rank, ring.size, ring.order), None, None


def where(length: int, rank: int, size: int, order: str) -> Tensor:
    """Tokens of a rank: a run, two runs that balance causal attention, or every ``size``-th."""
    pieces = torch.arange(length).chunk(2 * size if order == "zigzag" else size)
    if order == "zigzag":
        return torch.cat([pieces[rank], pieces[2 * size - 1 - rank]])
    return torch.arange(rank, length, size) if order == "striped" else pieces[rank]


def part(x: Tensor, rank: int, size: int, order: str) -> Tensor:
    """Of dim 1."""
    return x[:, where(x.shape[1], rank, size, order)] if size > 1 else x


def joined(parts: list[Tensor], order: str) -> Tensor:
    """Of dim 1."""
    size = len(parts)
    places = torch.cat([where(parts[0].shape[1] * size, rank, size, order) for rank in range(size)])
    return torch.cat(parts, 1)[:, places.argsort()]


class Attention(nn.Module):
    """Causal, over the keys and values of all ranks."""

    def __init__(self, ring: Ring, fault: str) -> None:
        super().__init__()
        self.ring, self.fault = ring, fault
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).unbind(2)
        if self.ring.order:
            k, v = (Gathered.apply(one, self.ring, self.fault != "reduce") for one in (k, v))
        shown = positions[0] if self.fault != "mask" else torch.arange(x.shape[1])
        mask = shown[:, None] >= torch.arange(k.shape[1])
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, ring: Ring, fault: str) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(ring, fault)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.attention(self.norm(x), positions)


class Model(nn.Module):
    def __init__(self, ring: Ring, fault: str) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Layer(ring, fault if layer == 1 else "") for layer in range(2)])
        self.head, self.fault = nn.Linear(WIDTH, VOCABULARY, bias=False), fault

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        counted = positions * 0 + torch.arange(positions.shape[1])
        x = self.tokens(ids) + self.places(counted if self.fault == "positions" else positions)
        for layer in self.layers:
            x = layer(x, positions)
        return self.head(x)


def rings(order: str, groups: int, *, strided: bool) -> tuple[Ring, int]:
    """This process's ring, and which group of rows it reads; neighbours share sequences, or every
    ``groups``-th process does (``strided``)."""
    if not order:
        return Ring(), 0
    rank, size = dist.get_rank(), dist.get_world_size() // groups
    held = [
        range(at, groups * size, groups) if strided else range(at * size, (at + 1) * size)
        for at in range(groups)
    ]
    made = [dist.new_group(list(ranks)) for ranks in held]
    at = next(number for number, ranks in enumerate(held) if rank in ranks)
    return Ring(made[at], list(held[at]).index(rank), size, order), at


def train(order: str, fault: str, folder: str, options: dict[str, Any], more: dict[str, Any]) -> None:
    """Two steps; ``order`` is empty in one process."""
    withdraw_layout()  # by the program before in this process
    groups, by, calls = more.get("groups", 1), more.get("by", "hand"), more.get("calls", 1)
    ring, at = rings(order, groups, strided=more.get("strided", False))
    rank = dist.get_rank() if order else 0
    torch.manual_seed(0)
    model: nn.Module = Model(ring, fault if more.get("rank", rank) == rank else "")
    if order and by == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif order and by == "fsdp":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = trueup.Tracer(folder, steps="0-1", **options)
    tracer.start()
    for step in range(2):
        draw = torch.Generator().manual_seed(step + more.get("seed", 0))
        ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), generator=draw)
        positions = torch.arange(LENGTH).expand(ROWS, LENGTH)
        every = ids[:, :-1], positions, ids[:, 1:]
        rows = [
            one[at::groups] if more.get("dealt") == "alternately" else one.chunk(groups)[at] for one in every
        ]
        optimizer.zero_grad()
        for call in range(calls):
            given = [part(one.chunk(calls)[call], ring.rank, ring.size, order).contiguous() for one in rows]
            if fault == "token" and rank == 1:
                given[0][1, 3] = (given[0][1, 3] + 1) % VOCABULARY
            logits = model(given[0], given[1])
            summed = F.cross_entropy(logits.flatten(0, 1), given[2].flatten(), reduction="sum")
            divisor = ids[:, 1:].numel() if by == "hand" else given[2].numel() * calls
            (summed / divisor).backward()
        if order and by == "hand":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
    tracer.close()


def traced(
    order: str,
    folder: Path,
    fault: str = "",
    size: int = 2,
    *,
    more: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """The trace of a run; without an order of one process."""
    from tests.trainer.worlds import world

    given = fault, str(folder), options, more or {}
    world(size if order else 1).run("tests.merging.contexts:train", order, *given)
    return folder
