"""A small GPT with a fused query, key and value, in any mixture of dtypes, and faults that have none."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Program:
    """One way to write and run a small GPT; the default computes in float32."""

    dtype: str = "float32"
    autocast: str | None = None
    norm: str | None = None
    """dtype it computes in; None: that of its input"""
    embedding: str | None = None
    """dtype the embedding's output is rounded to"""
    loss: str | None = None
    eager: bool = False
    shift: float = 0.0
    """added to the eps of the last norm: a fault"""
    early: float = 1.0
    """factor on the first embedding: a fault before every cast"""
    seed: int = 0
    rows: int = 4
    length: int = 16


class Norm(nn.Module):
    def __init__(self, width: int, program: Program, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.dtype = None if program.norm is None else getattr(torch, program.norm)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        given = x.dtype
        if self.dtype is not None:
            x = x.to(self.dtype)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x.to(given) * self.weight.to(given)


class Block(nn.Module):
    def __init__(self, width: int, program: Program, eps: float) -> None:
        super().__init__()
        self.norm, self.eager = Norm(width, program, eps), program.eager
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (y.view(b, t, 2, d // 2).transpose(1, 2) for y in self.qkv(self.norm(x)).split(d, -1))
        if self.eager:
            scores = (q @ k.transpose(-2, -1)) * (d // 2) ** -0.5
            scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
            y = F.softmax(scores.float(), -1).to(v.dtype) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(x)))


class Gpt(nn.Module):
    def __init__(self, program: Program, width: int = 32) -> None:
        super().__init__()
        self.program = program
        self.embed = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, program, 1e-6 + program.shift * at) for at in range(2))
        self.head = nn.Linear(width, 64, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * self.program.early
        if self.program.embedding is not None:
            x = x.to(getattr(torch, self.program.embedding)).to(self.embed.weight.dtype)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def train(program: Program) -> None:
    torch.manual_seed(program.seed)
    model = Gpt(program).to(getattr(torch, program.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(1)
    mixed = (
        nullcontext() if program.autocast is None else torch.autocast("cpu", getattr(torch, program.autocast))
    )
    for _ in range(STEPS):
        ids = torch.randint(0, 64, (program.rows, program.length + 1), generator=draw)
        optimizer.zero_grad()
        with mixed:
            logits = model(ids[:, :-1]).flatten(0, 1)
            rounded = logits.float() if program.loss is None else logits.to(getattr(torch, program.loss))
            loss = F.cross_entropy(rounded, ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
