"""A Llama for MindSpore under names of its own: qkv and gate_up fused, weights stored as [in, out], rotary
tables made beforehand.

Shapes: B batch, S sequence, H hidden, N heads, G key and value heads, D channels a head.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from tests.matching.implementations.sizes import Sizes


class Projection(nn.Cell):
    """``x @ matrix``, without bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.matrix = Parameter(Tensor(np.zeros((inputs, outputs), np.float32)), name="matrix")

    def construct(self, x: Tensor) -> Tensor:
        return mint.matmul(x, self.matrix)


class RootMeanSquare(nn.Cell):
    """Norm over the channels."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.eps = sizes.norm_eps
        self.gamma = Parameter(Tensor(np.ones(sizes.hidden_size, np.float32)), name="gamma")

    def construct(self, x: Tensor) -> Tensor:
        variance = mint.mean(mint.square(x), -1, keepdim=True)
        return x * mint.rsqrt(variance + self.eps) * self.gamma


class Attention(nn.Cell):
    """Grouped-query attention over [B, N, S, D]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.groups, self.channels = sizes.num_heads, sizes.num_groups, sizes.head_size
        self.query_width, self.key_width = sizes.hidden_size, sizes.num_groups * sizes.head_size
        self.fused_in = Projection(sizes.hidden_size, self.query_width + 2 * self.key_width)
        self.merge = Projection(sizes.hidden_size, sizes.hidden_size)
        self.scale = sizes.head_size**-0.5

    def heads_of(self, x: Tensor, count: int) -> Tensor:
        """[B, S, count * D] to [B, count, S, D]."""
        batch, length, _ = x.shape
        return mint.transpose(x.reshape(batch, length, count, self.channels), 1, 2)

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turned by position; the first half of the channels pairs with the second."""
        left, right = mint.chunk(x, 2, -1)
        return x * cos + mint.cat((-right, left), -1) * sin

    def shared(self, x: Tensor) -> Tensor:
        """Each key or value head for all query heads of its group."""
        batch, groups, length, channels = x.shape
        wide = (batch, groups, self.heads // groups, length, channels)
        x = mint.broadcast_to(x.reshape(batch, groups, 1, length, channels), wide)
        return x.reshape(batch, self.heads, length, channels)

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor, unseen: Tensor) -> Tensor:
        batch, length, _ = x.shape
        widths = (self.query_width, self.key_width, self.key_width)
        query, key, value = mint.split(self.fused_in(x), widths, -1)
        query = self.turned(self.heads_of(query, self.heads), cos, sin)
        key = self.shared(self.turned(self.heads_of(key, self.groups), cos, sin))
        value = self.shared(self.heads_of(value, self.groups))
        scores = mint.matmul(query, mint.transpose(key, 2, 3)) * self.scale
        shares = mint.nn.functional.softmax(scores + unseen, dim=-1)
        context = mint.transpose(mint.matmul(shares, value), 1, 2)
        return self.merge(context.reshape(batch, length, self.query_width))


class GatedUnit(nn.Cell):
    """One matrix for gate and up."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.widen = Projection(sizes.hidden_size, 2 * sizes.ffn_size)
        self.narrow = Projection(sizes.ffn_size, sizes.hidden_size)

    def construct(self, x: Tensor) -> Tensor:
        gate, up = mint.chunk(self.widen(x), 2, -1)
        return self.narrow(mint.nn.functional.silu(gate) * up)


class Block(nn.Cell):
    """One layer, pre-norm."""

    def __init__(self, sizes: Sizes, feed_forward: nn.Cell) -> None:
        super().__init__()
        self.before_mix, self.mix = RootMeanSquare(sizes), Attention(sizes)
        self.before_feed, self.feed = RootMeanSquare(sizes), feed_forward

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor, unseen: Tensor) -> Tensor:
        x = x + self.mix(self.before_mix(x), cos, sin, unseen)
        return x + self.feed(self.before_feed(x))


class Model(nn.Cell):
    """Tokens [B, S] to logits [B, S, vocabulary]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.stack = nn.CellList([Block(sizes, self.feed_forward(sizes)) for _ in range(sizes.num_layers)])
        self.last = RootMeanSquare(sizes)
        self.predict = Projection(sizes.hidden_size, sizes.vocab_size)
        places = np.arange(sizes.seq_length)[:, None]
        rates = sizes.rope_base ** -(np.arange(0, sizes.head_size, 2) / sizes.head_size)
        angles = np.concatenate([places * rates, places * rates], -1)
        self.cos = Tensor(np.cos(angles), ms.float32)
        self.sin = Tensor(np.sin(angles), ms.float32)
        self.unseen = Tensor(np.triu(np.full((sizes.seq_length,) * 2, -1e9), 1), ms.float32)

    def feed_forward(self, sizes: Sizes) -> nn.Cell:
        """What each layer ends in."""
        return GatedUnit(sizes)

    def construct(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.stack:
            x = block(x, self.cos, self.sin, self.unseen)
        return self.predict(self.last(x))


class WithLoss(nn.Cell):
    """Tokens to the mean cross entropy of the next token."""

    def __init__(self, model: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = model

    def construct(self, ids: Tensor) -> Tensor:
        logits = self.network(ids)
        wanted = ids[:, 1:].reshape(-1)
        return ops.cross_entropy(logits[:, :-1].reshape(wanted.shape[0], -1), wanted)
