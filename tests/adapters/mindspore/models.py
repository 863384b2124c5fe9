"""Small MindSpore models: cells a program would write, on operations that have CPU kernels."""

from __future__ import annotations

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

VOCABULARY = 32
HIDDEN = 16
HEADS = 2
LENGTH = 8


def weights(seed: int, *shape: int) -> Tensor:
    """Initial values that do not touch MindSpore's generators."""
    return Tensor((np.random.default_rng(seed).standard_normal(shape) * 0.1).astype(np.float32))


class Linear(nn.Cell):
    def __init__(self, seed: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = Parameter(weights(seed, outputs, inputs), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class RMSNorm(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(np.ones(HIDDEN, np.float32)), name="gamma")

    def construct(self, x: Tensor) -> Tensor:
        return x * mint.rsqrt(mint.mean(x * x, -1, keepdim=True) + 1e-6) * self.gamma


class Attention(nn.Cell):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.qkv = Linear(seed, HIDDEN, 3 * HIDDEN)
        self.out = Linear(seed + 1, HIDDEN, HIDDEN)

    def construct(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = mint.chunk(self.qkv(x), 3, -1)
        q, k, v = (mint.transpose(p.reshape(batch, length, HEADS, -1), 1, 2) for p in parts)
        scores = mint.matmul(q, mint.transpose(k, 2, 3)) * (HIDDEN // HEADS) ** -0.5
        hidden = Tensor(np.triu(np.full((length, length), -1e9, np.float32), 1))
        y = mint.matmul(F.softmax(scores + hidden, dim=-1), v)
        return self.out(mint.transpose(y, 1, 2).reshape(batch, length, HIDDEN))


class Block(nn.Cell):
    def __init__(self, seed: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attn = RMSNorm(), Attention(seed)
        self.norm2, self.up = RMSNorm(), Linear(seed + 2, HIDDEN, 2 * HIDDEN)
        self.down = Linear(seed + 3, HIDDEN, HIDDEN)
        self.dropout = nn.Dropout(p=dropout) if dropout else None

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        gate, up = mint.chunk(self.up(self.norm2(x)), 2, -1)
        y = self.down(F.silu(gate) * up)
        return x + (y if self.dropout is None else self.dropout(y))


class GPT(nn.Cell):
    """Token ids [batch, length] to logits [batch, length, vocabulary]."""

    def __init__(self, *, dropout: float = 0.0, tied: bool = False, layers: int = 2) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, HIDDEN)
        self.emb.embedding_table.set_data(weights(7, VOCABULARY, HIDDEN))
        self.layers = nn.CellList([Block(10 * (i + 1), dropout) for i in range(layers)])
        self.norm = RMSNorm()
        self.head = Linear(8, HIDDEN, VOCABULARY)
        if tied:
            self.head.weight = self.emb.embedding_table

    def construct(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels of one step, [2, LENGTH] int32 each."""
    ids = np.random.default_rng(100 + step).integers(0, VOCABULARY, (2, LENGTH + 1)).astype(np.int32)
    return Tensor(ids[:, :-1]), Tensor(ids[:, 1:])


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over all tokens."""
    return ops.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))


def start() -> None:
    """The device, as a program chooses it before its first operation."""
    ms.set_device("CPU")
