"""A Llama as Megatron-core writes it: fused qkv by query group, fused gate and up, sequence first.

Shapes: s sequence, b batch, h hidden, g query groups, n heads, d channels a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.matching.implementations.sizes import Sizes


class LanguageModelEmbedding(nn.Module):
    """Tokens to hidden states, [b, s] to [s, b, h]."""

    def __init__(self, sizes: Sizes, padded_vocab_size: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(padded_vocab_size, sizes.hidden_size)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.word_embeddings(input_ids).transpose(0, 1).contiguous()


class RotaryEmbedding(nn.Module):
    """Angles of every position, [s, 1, 1, d], both halves alike."""

    inv_freq: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        exponent = torch.arange(0, sizes.head_size, 2, dtype=torch.float32) / sizes.head_size
        self.register_buffer("inv_freq", 1.0 / (sizes.rope_base**exponent), persistent=False)

    def forward(self, max_seq_len: int) -> Tensor:
        seq = torch.arange(max_seq_len, dtype=self.inv_freq.dtype)
        freqs = torch.outer(seq, self.inv_freq)
        return torch.cat((freqs, freqs), dim=-1)[:, None, None, :]


def rotated(t: Tensor, freqs: Tensor) -> Tensor:
    """``t`` [s, b, n, d] turned by its position; the first half of the channels pairs with the second."""
    first, second = torch.chunk(t, 2, dim=-1)
    return t * torch.cos(freqs) + torch.cat((-second, first), dim=-1) * torch.sin(freqs)


class RMSNorm(nn.Module):
    """Root mean square norm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class FusedScaleMaskSoftmax(nn.Module):
    """Probabilities of masked scores, [b, n, s, s]."""

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(scores.masked_fill(mask, -10000.0), dim=-1)


class DotProductAttention(nn.Module):
    """Attention proper; query [s, b, n, d], key and value [s, b, g, d], gives [s, b, h]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm_factor = sizes.head_size**0.5
        self.scale_mask_softmax = FusedScaleMaskSoftmax()
        self.attention_dropout = nn.Dropout(0.0)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        repeats = query.shape[2] // key.shape[2]
        key = key.repeat_interleave(repeats, dim=2)
        value = value.repeat_interleave(repeats, dim=2)
        s, b, n, d = query.shape
        query = query.reshape(s, b * n, d)
        key = key.reshape(s, b * n, d)
        empty = torch.zeros(b * n, s, s)
        scores = torch.baddbmm(
            empty,
            query.transpose(0, 1),
            key.transpose(0, 1).transpose(1, 2),
            beta=0.0,
            alpha=1.0 / self.norm_factor,
        )
        probs = self.attention_dropout(self.scale_mask_softmax(scores.view(b, n, s, s), mask))
        value = value.reshape(s, b * n, d)
        context = torch.bmm(probs.view(b * n, s, s), value.transpose(0, 1)).view(b, n, s, d)
        return context.permute(2, 0, 1, 3).contiguous().view(s, b, n * d)


class SelfAttention(nn.Module):
    """Fused projection, rotary positions, attention, projection; [s, b, h] to ([s, b, h], no bias)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        width = (sizes.num_heads + 2 * sizes.num_groups) * sizes.head_size
        self.linear_qkv = nn.Linear(sizes.hidden_size, width, bias=False)
        self.core_attention = DotProductAttention(sizes)
        self.linear_proj = nn.Linear(sizes.hidden_size, sizes.hidden_size, bias=False)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, rotary_pos_emb: Tensor
    ) -> tuple[Tensor, None]:
        sizes = self.sizes
        mixed = self.linear_qkv(hidden_states)
        s, b, _ = mixed.shape
        heads = sizes.num_heads // sizes.num_groups
        d = sizes.head_size
        mixed = mixed.view(s, b, sizes.num_groups, (heads + 2) * d)
        query, key, value = torch.split(mixed, [heads * d, d, d], dim=3)
        query = query.reshape(s, b, -1, d)
        query, key = rotated(query, rotary_pos_emb), rotated(key, rotary_pos_emb)
        return self.linear_proj(self.core_attention(query, key, value, attention_mask)), None


class MLP(nn.Module):
    """Gated linear unit with gate and up in one projection."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(sizes.hidden_size, 2 * sizes.ffn_size, bias=False)
        self.linear_fc2 = nn.Linear(sizes.ffn_size, sizes.hidden_size, bias=False)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        gate, up = torch.chunk(self.linear_fc1(hidden_states), 2, dim=-1)
        return self.linear_fc2(F.silu(gate) * up), None


class TransformerLayer(nn.Module):
    """One layer, pre-norm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(sizes.hidden_size, sizes.norm_eps)
        self.self_attention = SelfAttention(sizes)
        self.pre_mlp_layernorm = RMSNorm(sizes.hidden_size, sizes.norm_eps)
        self.mlp = MLP(sizes)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, rotary_pos_emb: Tensor) -> Tensor:
        attention, _ = self.self_attention(
            self.input_layernorm(hidden_states), attention_mask, rotary_pos_emb
        )
        hidden_states = attention + hidden_states
        mlp, _ = self.mlp(self.pre_mlp_layernorm(hidden_states))
        return mlp + hidden_states


class TransformerBlock(nn.Module):
    """All layers and the last norm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(sizes) for _ in range(sizes.num_layers))
        self.final_layernorm = RMSNorm(sizes.hidden_size, sizes.norm_eps)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, rotary_pos_emb: Tensor) -> Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask, rotary_pos_emb)
        return self.final_layernorm(hidden_states)


class GPTModel(nn.Module):
    """Tokens [b, s] to logits [b, s, v] over a vocabulary padded to a multiple of 64."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        padded = -(-sizes.vocab_size // 64) * 64
        self.vocab_size = sizes.vocab_size
        self.embedding = LanguageModelEmbedding(sizes, padded)
        self.rotary_pos_emb = RotaryEmbedding(sizes)
        self.decoder = TransformerBlock(sizes)
        self.output_layer = nn.Linear(sizes.hidden_size, padded, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)[None, None]
        hidden_states = self.decoder(self.embedding(input_ids), mask, self.rotary_pos_emb(length))
        logits = self.output_layer(hidden_states)
        return logits[..., : self.vocab_size].transpose(0, 1).contiguous()
