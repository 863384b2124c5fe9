"""A Llama as torchtitan writes it: separate projections, rotary over interleaved pairs as complex numbers,
fused attention.

Shapes: B batch, T sequence, D model width, N heads, K key and value heads, H channels a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.matching.implementations.sizes import Sizes


def angles(sizes: Sizes) -> Tensor:
    """Unit complex numbers [T, H / 2], one turn a position and pair of channels."""
    frequency = 1.0 / sizes.rope_base ** (torch.arange(0, sizes.head_size, 2).float() / sizes.head_size)
    turns = torch.outer(torch.arange(sizes.seq_length).float(), frequency)
    return torch.polar(torch.ones_like(turns), turns)


def turned(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """``x`` [B, T, N, H] with channels 2 i and 2 i + 1 as one complex number, turned."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.view(1, x.shape[1], 1, pairs.shape[-1])
    return torch.view_as_real(pairs * freqs_cis).flatten(3).type_as(x)


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = sizes.num_heads, sizes.num_groups, sizes.head_size
        self.wq = nn.Linear(sizes.hidden_size, sizes.num_heads * sizes.head_size, bias=False)
        self.wk = nn.Linear(sizes.hidden_size, sizes.num_groups * sizes.head_size, bias=False)
        self.wv = nn.Linear(sizes.hidden_size, sizes.num_groups * sizes.head_size, bias=False)
        self.wo = nn.Linear(sizes.num_heads * sizes.head_size, sizes.hidden_size, bias=False)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        bs, seqlen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(bs, seqlen, -1, self.head_dim)
        xk = xk.view(bs, seqlen, -1, self.head_dim)
        xv = xv.view(bs, seqlen, -1, self.head_dim)
        xq, xk = turned(xq, freqs_cis), turned(xk, freqs_cis)
        xq, xk, xv = xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2)
        output = F.scaled_dot_product_attention(xq, xk, xv, is_causal=True, enable_gqa=True)
        return self.wo(output.transpose(1, 2).contiguous().view(bs, seqlen, -1))


class FeedForward(nn.Module):
    """w2(silu(w1 x) * w3 x)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.w1 = nn.Linear(sizes.hidden_size, sizes.ffn_size, bias=False)
        self.w2 = nn.Linear(sizes.ffn_size, sizes.hidden_size, bias=False)
        self.w3 = nn.Linear(sizes.hidden_size, sizes.ffn_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    """One layer, pre-norm, the norms torch's own."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = Attention(sizes)
        self.feed_forward = FeedForward(sizes)
        self.attention_norm = nn.RMSNorm(sizes.hidden_size, eps=sizes.norm_eps)
        self.ffn_norm = nn.RMSNorm(sizes.hidden_size, eps=sizes.norm_eps)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    """Tokens [B, T] to logits [B, T, vocabulary]."""

    freqs_cis: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.register_buffer("freqs_cis", angles(sizes), persistent=False)
        self.layers = nn.ModuleDict({str(i): TransformerBlock(sizes) for i in range(sizes.num_layers)})
        self.norm = nn.RMSNorm(sizes.hidden_size, eps=sizes.norm_eps)
        self.output = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis)
        return self.output(self.norm(h))
