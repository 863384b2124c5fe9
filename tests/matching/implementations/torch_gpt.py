"""The GPT of ``tests/adapters/mindspore/models.py`` in the hand of another: torch, other names, projections
apart that are one there."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, HIDDEN, HEADS, LENGTH = 32, 16, 2, 8


def normal(seed: int, *shape: int) -> Tensor:
    """The same numbers as the other side draws."""
    return torch.from_numpy((np.random.default_rng(seed).standard_normal(shape) * 0.1).astype(np.float32))


def projection(weight: Tensor) -> nn.Linear:
    """Without bias."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = nn.Parameter(weight.clone())
    return made


class Scale(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(HIDDEN)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class SelfAttention(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        query, key, value = normal(seed, 3 * HIDDEN, HIDDEN).chunk(3)
        self.wq, self.wk, self.wv = projection(query), projection(key), projection(value)
        self.wo = projection(normal(seed + 1, HIDDEN, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        scores = q @ k.transpose(-1, -2) / (HIDDEN // HEADS) ** 0.5
        unseen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(unseen, float("-inf")).softmax(-1)
        return self.wo((weights @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        gate, up = normal(seed + 2, 2 * HIDDEN, HIDDEN).chunk(2)
        self.w1, self.w3 = projection(gate), projection(up)
        self.w2 = projection(normal(seed + 3, HIDDEN, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class DecoderLayer(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = Scale(), SelfAttention(seed)
        self.ffn_norm, self.feed_forward = Scale(), FeedForward(seed)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class LanguageModel(nn.Module):
    """Token ids [batch, length] to logits [batch, length, vocabulary]."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, HIDDEN)
        self.tok_embeddings.weight = nn.Parameter(normal(7, VOCABULARY, HIDDEN))
        self.blocks = nn.ModuleList([DecoderLayer(10 * (i + 1)) for i in range(layers)])
        self.final_norm = Scale()
        self.output = projection(normal(8, VOCABULARY, HIDDEN))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        for block in self.blocks:
            h = block(h)
        return self.output(self.final_norm(h))


def train(*, norm_eps: float | None = None, steps: int = 2) -> list[float]:
    """Losses; ``norm_eps`` changes one norm of the last layer."""
    torch.set_num_threads(1)
    model = LanguageModel()
    if norm_eps is not None:
        model.blocks[1].ffn_norm.eps = norm_eps  # type: ignore[assignment,union-attr]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        ids = np.random.default_rng(100 + step).integers(0, VOCABULARY, (2, LENGTH + 1))
        tokens = torch.from_numpy(ids)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
