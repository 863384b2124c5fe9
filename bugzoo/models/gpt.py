"""A small GPT with rotary embedding: the model of the fault collection, the benchmarks and most tests.

Shapes: B batch, T tokens, D hidden, H heads, K head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """Sizes, and the switches a planted fault turns."""

    vocab_size: int = 1000
    num_layers: int = 4
    hidden_size: int = 256
    num_heads: int = 8
    seq_length: int = 128
    dropout: float = 0.0
    norm_eps: float = 1e-5


class Rotary(nn.Module):
    """Rotary position embedding on q and k of shape (B, H, T, K)."""

    def __init__(self, head_dim: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.compute_dtype = dtype

    def forward(self, x_BHTK: Tensor) -> Tensor:
        half = self.head_dim // 2
        frequency = 1.0 / (10000.0 ** (torch.arange(half, dtype=torch.float32) / half))
        position = torch.arange(x_BHTK.shape[-2], dtype=torch.float32)
        angle = torch.outer(position, frequency).to(self.compute_dtype)
        cos, sin = angle.cos().to(x_BHTK.dtype), angle.sin().to(x_BHTK.dtype)
        first, second = x_BHTK[..., :half], x_BHTK[..., half:]
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Attention(nn.Module):
    """Causal self-attention, written out so that every step is an API call."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.head_dim = config.hidden_size // config.num_heads
        self.scale = self.head_dim**-0.5
        self.mask_offset = 1
        self.split_by_chunk = False
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.rotary = Rotary(self.head_dim)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        batch, length, hidden = x_BTD.shape
        qkv = self.qkv(x_BTD)
        if self.split_by_chunk:
            q, k, v = (t.contiguous() for t in qkv.chunk(3, dim=-1))
        else:
            q, k, v = qkv.split(hidden, dim=-1)
        q, k, v = (t.view(batch, length, self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))
        q, k = self.rotary(q), self.rotary(k)
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        hidden_part = torch.ones(length, length, dtype=torch.bool).triu(self.mask_offset)
        probabilities = self.drop(F.softmax(scores.masked_fill(hidden_part, float("-inf")), dim=-1))
        mixed = torch.matmul(probabilities, v).transpose(1, 2).reshape(batch, length, hidden)
        return self.proj(mixed)


class MLP(nn.Module):
    """Two linear layers with GELU."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * config.hidden_size, config.hidden_size)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.drop(self.down(self.act(self.up(x_BTD))))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ln2 = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attn(self.ln1(x_BTD))
        return x_BTD + self.mlp(self.ln2(x_BTD))


class GPT(nn.Module):
    """Token ids (B, T) to logits (B, T, vocabulary)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.emb = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = self.emb(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return self.head(self.norm(x_BTD))


def batch(config: GPTConfig, *, step: int, size: int = 4) -> tuple[Tensor, Tensor]:
    """Random ids and their shifted labels, the same for a given step."""
    generator = torch.Generator().manual_seed(1000 + step)
    ids = torch.randint(0, config.vocab_size, (size, config.seq_length + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:]


def loss_of(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy."""
    return F.cross_entropy(model(ids).flatten(0, 1).float(), labels.flatten())
