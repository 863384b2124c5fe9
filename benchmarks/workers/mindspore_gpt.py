"""The benchmarks' GPT in MindSpore, of the sizes of ``bugzoo.models.gpt``, on what has a CPU kernel.

Shapes: B batch, T tokens, D hidden, H heads, K head dimension.
"""

from __future__ import annotations

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

VOCABULARY, LAYERS, HEADS = 1000, 4, 8


def values(seed: int, *shape: int) -> Tensor:
    """Initial values that touch no generator of MindSpore's."""
    return Tensor((np.random.default_rng(seed).standard_normal(shape) * 0.02).astype(np.float32))


class Linear(nn.Cell):
    """Weight and bias."""

    def __init__(self, seed: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = Parameter(values(seed, outputs, inputs), name="weight")
        self.bias = Parameter(Tensor(np.zeros(outputs, np.float32)), name="bias")

    def construct(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Rotary(nn.Cell):
    """Rotary position embedding on (B, H, T, K)."""

    def __init__(self, head_dim: int, length: int) -> None:
        super().__init__()
        half = head_dim // 2
        angle = np.outer(np.arange(length), 1.0 / (10000.0 ** (np.arange(half) / half)))
        self.half = half
        self.cos, self.sin = Tensor(np.cos(angle), ms.float32), Tensor(np.sin(angle), ms.float32)

    def construct(self, x_BHTK: Tensor) -> Tensor:
        first, second = mint.split(x_BHTK, self.half, -1)
        return mint.cat((first * self.cos - second * self.sin, first * self.sin + second * self.cos), -1)


class Attention(nn.Cell):
    """Causal self-attention, written out so that every step is an API call."""

    def __init__(self, seed: int, hidden: int, length: int) -> None:
        super().__init__()
        self.head_dim = hidden // HEADS
        self.qkv = Linear(seed, hidden, 3 * hidden)
        self.rotary = Rotary(self.head_dim, length)
        self.proj = Linear(seed + 1, hidden, hidden)
        self.mask = Tensor(np.triu(np.ones((length, length), bool), 1))

    def construct(self, x_BTD: Tensor) -> Tensor:
        batch, length, hidden = x_BTD.shape
        parts = mint.split(self.qkv(x_BTD), hidden, -1)
        q, k, v = (mint.transpose(p.reshape(batch, length, HEADS, self.head_dim), 1, 2) for p in parts)
        q, k = self.rotary(q), self.rotary(k)
        scores = mint.matmul(q, mint.transpose(k, 2, 3)) * self.head_dim**-0.5
        chances = F.softmax(scores.masked_fill(self.mask, -1e9), dim=-1)
        mixed = mint.transpose(mint.matmul(chances, v), 1, 2)
        return self.proj(mixed.reshape(batch, length, hidden))


class Block(nn.Cell):
    """Attention and a gated MLP, each behind a norm."""

    def __init__(self, seed: int, hidden: int, length: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm((hidden,)), nn.LayerNorm((hidden,))
        self.attn = Attention(seed, hidden, length)
        self.up, self.down = Linear(seed + 2, hidden, 4 * hidden), Linear(seed + 3, 4 * hidden, hidden)

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class GPT(nn.Cell):
    """Token ids (B, T) to logits (B, T, vocabulary)."""

    def __init__(self, hidden: int, length: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, hidden)
        self.emb.embedding_table.set_data(values(1, VOCABULARY, hidden))
        self.layers = nn.CellList([Block(10 * i + 10, hidden, length) for i in range(LAYERS)])
        self.norm = nn.LayerNorm((hidden,))
        self.head = Linear(2, hidden, VOCABULARY)

    def construct(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over all tokens."""
    return ops.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))
