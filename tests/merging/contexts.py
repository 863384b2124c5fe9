"""A causal transformer whose ranks have a part of every sequence, and say nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import trueup
from trueup.capture.declared import withdraw_layout

VOCABULARY, WIDTH, HEADS, LENGTH, ROWS = 96, 32, 4, 16, 4


class Gathered(torch.autograd.Function):
    """Parts of all ranks in the order of the sequence; gradients of all ranks are summed and cut again."""

    @staticmethod
    def forward(context: Any, x: Tensor, order: str) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        context.order = order
        return joined(parts, order)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        summed = gradient.contiguous().clone()
        dist.all_reduce(summed)
        return part(summed, dist.get_rank(), dist.get_world_size(), context.order), None


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

    def __init__(self, order: str, fault: str) -> None:
        super().__init__()
        self.order, self.fault = order, fault
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).unbind(2)
        if self.order:
            k, v = Gathered.apply(k, self.order), Gathered.apply(v, self.order)
        shown = positions[0] if self.fault != "mask" else torch.arange(x.shape[1])
        mask = shown[:, None] >= torch.arange(k.shape[1])
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, order: str, fault: str) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(order, fault)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.attention(self.norm(x), positions)


class Model(nn.Module):
    def __init__(self, order: str, fault: str) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Layer(order, fault if layer == 1 else "") for layer in range(2)])
        self.head, self.fault = nn.Linear(WIDTH, VOCABULARY, bias=False), fault

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        counted = positions * 0 + torch.arange(positions.shape[1])
        x = self.tokens(ids) + self.places(counted if self.fault == "positions" else positions)
        for layer in self.layers:
            x = layer(x, positions)
        return self.head(x)


def train(order: str, fault: str, folder: str, options: dict[str, Any]) -> None:
    """One step; ``order`` is empty in one process."""
    withdraw_layout()  # by the program before in this process
    rank, size = (dist.get_rank(), dist.get_world_size()) if order else (0, 1)
    torch.manual_seed(0)
    model = Model(order, fault)
    ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1))
    positions = torch.arange(LENGTH).expand(ROWS, LENGTH)
    given = [part(one, rank, size, order).contiguous() for one in (ids[:, :-1], positions, ids[:, 1:])]
    if fault == "token" and rank == 1:
        given[0][2, 3] = (given[0][2, 3] + 1) % VOCABULARY
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = trueup.Tracer(folder, **options)
    tracer.start()
    logits = model(given[0], given[1])
    loss = F.cross_entropy(logits.flatten(0, 1), given[2].flatten(), reduction="sum") / ids[:, 1:].numel()
    loss.backward()
    if order:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
    tracer.close()


def traced(order: str, folder: Path, fault: str = "", size: int = 2, **options: Any) -> Path:
    """The trace of a run; without an order of one process."""
    from tests.trainer.worlds import world

    world(size if order else 1).run("tests.merging.contexts:train", order, fault, str(folder), options)
    return folder
