"""Token batches: full sequences, or documents packed with positions, document numbers and a loss mask.

A batch is a pure function of seed, step, microbatch and shard. Documents follow a simple rule with noise, so
that there is something to learn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Batch = dict[str, Tensor]
END = 1
"""id that ends a document"""
PAD = 0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How much a microbatch holds."""

    vocab_size: int
    rows: int
    length: int
    packed: bool = False


def batch(shape: Shape, *, step: int, microbatch: int = 0, shard: int = 0) -> Batch:
    """Ids, labels shifted by one and loss mask, all (rows, length); packed ones say where documents are."""
    generator = torch.Generator().manual_seed(1_000_003 * step + 1009 * microbatch + 13 * shard + 5)
    if shape.packed:
        rows = [_packed_row(shape, generator) for _ in range(shape.rows)]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    tokens = torch.stack([document(shape, shape.length + 1, generator) for _ in range(shape.rows)])
    ids, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return {"ids": ids, "labels": labels, "mask": torch.ones(ids.shape)}


def document(shape: Shape, length: int, generator: torch.Generator) -> Tensor:
    """Each token mostly follows from the one before; ids 0 and 1 are kept for padding and end."""
    size = shape.vocab_size - 2
    start, stride = torch.randint(0, size, (2,), generator=generator).tolist()
    noise = torch.randint(0, size, (length,), generator=generator)
    is_noise = torch.rand(length, generator=generator) < 0.15
    rule = (start + (2 * (stride % 3) + 1) * torch.arange(length)) % size
    return torch.where(is_noise, noise, rule) + 2


def _packed_row(shape: Shape, generator: torch.Generator) -> Batch:
    """Documents one after another, each ended, then padding; two tokens a document are prompt."""
    row = {name: torch.zeros(shape.length, dtype=torch.int64) for name in ("ids", "labels", "positions")}
    row |= {"mask": torch.zeros(shape.length), "documents": torch.zeros(shape.length, dtype=torch.int64)}
    start, number = 0, 1
    while start < shape.length - 6:
        wanted = int(torch.randint(5, shape.length // 2, (1,), generator=generator))
        size = min(wanted, shape.length - start)
        tokens = document(shape, size + 1, generator)
        tokens[-1] = END
        part = slice(start, start + size)
        row["ids"][part], row["labels"][part] = tokens[:-1], tokens[1:]
        row["positions"][part], row["documents"][part] = torch.arange(size), number
        row["mask"][start + 2 : start + size] = 1.0
        start, number = start + size, number + 1
    return row
