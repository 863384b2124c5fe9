"""Causal self-attention with grouped key and value heads, eager or fused, over documents and over ranks.

Shapes: B batch, T tokens, S keys, D hidden, H heads, G key and value heads, K head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bugzoo.models.ranks import gather, rank_and_world, sum_to_part
from bugzoo.models.settings import ModelConfig


class Rotary(nn.Module):
    """Rotary position embedding of (B, H, T, K), tables computed in float32."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta
        self.table_dtype = torch.float32

    def tables(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every angle, (B, 1, T, K/2)."""
        half = self.head_dim // 2
        frequency = 1.0 / (self.theta ** (torch.arange(half, dtype=torch.float32) / half))
        angle = positions_BT[:, None, :, None].to(self.table_dtype) * frequency.to(self.table_dtype)
        return angle.cos(), angle.sin()

    def forward(self, x_BHTK: Tensor, positions_BT: Tensor) -> Tensor:
        cos, sin = (table.to(x_BHTK.dtype) for table in self.tables(positions_BT))
        first, second = x_BHTK.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Attention(nn.Module):
    """Queries, keys and values from one projection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.parallel = config.parallel
        share = rank_and_world()[1] if config.parallel == "tensor" else 1
        self.num_heads = config.num_heads // share
        self.num_kv_heads = config.num_kv_heads // share
        self.head_dim = config.hidden_size // config.num_heads
        self.scale = self.head_dim**-0.5
        self.fused = config.attention == "sdpa"
        rows = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        bias = config.parallel != "tensor"
        self.qkv = nn.Linear(config.hidden_size, rows, bias=bias)
        rotates = config.position == "rotary"
        self.rotary = Rotary(self.head_dim, config.rotary_theta) if rotates else None
        self.proj = nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=bias)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, positions_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        if self.parallel == "tensor":
            x_BTD = gather(x_BTD, 1)
        q, k, v = self.heads(self.qkv(x_BTD))
        if self.rotary is not None:
            q, k = self.rotary(q, positions_BT), self.rotary(k, positions_BT)
        if self.parallel == "context":
            k, v = gather(k, 2), gather(v, 2)
        mixed = self.mix(q, self.repeat(k), self.repeat(v), self.hidden(q, k, documents_BT))
        out = self.proj(mixed.transpose(1, 2).flatten(2))
        return sum_to_part(out, 1) if self.parallel == "tensor" else out

    def heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, rows) to (B, heads, T, K) each."""
        sizes = [n * self.head_dim for n in (self.num_heads, self.num_kv_heads, self.num_kv_heads)]
        q, k, v = qkv.split(sizes, dim=-1)
        return self.apart(q), self.apart(k), self.apart(v)

    def apart(self, x: Tensor) -> Tensor:
        """(B, T, heads * K) to (B, heads, T, K)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def repeat(self, x: Tensor) -> Tensor:
        """Each key or value head for all the query heads of its group."""
        times = self.num_heads // self.num_kv_heads
        return x if times == 1 else x.repeat_interleave(times, dim=1)

    def hidden(self, q: Tensor, k: Tensor, documents_BT: Tensor | None) -> Tensor:
        """True where a query must not look: later keys, and those of another document."""
        length, offset = q.shape[2], 0
        if self.parallel == "context":
            offset = rank_and_world()[0] * length
        query, key = torch.arange(length) + offset, torch.arange(k.shape[2])
        later_TS = key[None, :] > query[:, None]
        if documents_BT is None:
            return later_TS
        return later_TS | (documents_BT[:, None, :, None] != documents_BT[:, None, None, :])

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        """Values weighed by the softmax of the scores."""
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden, scale=self.scale)
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        return torch.matmul(self.drop(self.probabilities(scores, hidden)), v)

    def probabilities(self, scores: Tensor, hidden: Tensor) -> Tensor:
        """Softmax in float32 over what may be seen."""
        return F.softmax(scores.masked_fill(hidden, float("-inf")).float(), dim=-1).to(scores.dtype)
