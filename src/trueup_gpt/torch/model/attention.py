"""Self-attention and rotary positions. Suffixes of names as in ``gpt.py``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueup_gpt.config import ModelConfig
from trueup_gpt.torch.model.parts import Linear

Rotation = tuple[Tensor, Tensor]
_SWAP = (0, 2, 1, 3)


def rotation(positions_BT: Tensor, config: ModelConfig) -> Rotation:
    """Cosines and sines (B, T, 1, D'/2) of the angles by which the first D' channels of a head are turned."""
    rotary = config.rotary_config
    dims = int(config.head_dim * rotary.rotary_percent)
    wide = torch.float64 if config.compute_dtype == "float64" else torch.float32
    pair = torch.arange(0, dims, 2, dtype=wide, device=positions_BT.device)
    frequency = rotary.rotary_base ** (-pair / dims) / rotary.seq_len_interpolation_factor
    angle = positions_BT[:, :, None, None].to(wide) * frequency
    return angle.cos(), angle.sin()


def rotate(x_BTND: Tensor, turn: Rotation, *, interleaved: bool) -> Tensor:
    """Turn pairs of channels; what the rotation does not reach stays as it is."""
    cos, sin = turn
    dims = 2 * cos.shape[-1]
    x, rest = x_BTND[..., :dims].to(cos.dtype), x_BTND[..., dims:]
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    turned = a * cos - b * sin, b * cos + a * sin
    y = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    y = y.to(x_BTND.dtype)
    return torch.cat((y, rest), dim=-1) if rest.shape[-1] else y


class AttentionCore(nn.Module):
    """softmax(q k^T / sqrt(D)) v, head by head."""

    def __init__(self, config: ModelConfig, layer: int, *, tokens_first: bool = False) -> None:
        super().__init__()
        self.to_heads, self.from_heads = ((1, 2, 0, 3), (2, 0, 1, 3)) if tokens_first else (_SWAP, _SWAP)
        self.causal = "causal" in config.encoder_attn_mask_type
        self.padding = "padding" in config.encoder_attn_mask_type
        self.softmax_dtype = getattr(torch, config.softmax_compute_dtype)
        self.fused = config.use_flash_attention
        self.dropout = config.attention_dropout
        self.scale = config.head_dim**-0.5
        self.layer_scale = float(layer + 1) if config.apply_query_key_layer_scaling else 1.0

    def forward(
        self,
        q_BTND: Tensor,
        k_BSKD: Tensor,
        v_BSKD: Tensor,
        q_positions_BT: Tensor | None,
        k_positions_BS: Tensor | None,
        valid_BS: Tensor | None,
    ) -> Tensor:
        q, k, v = (x.permute(self.to_heads) for x in (q_BTND, k_BSKD, v_BSKD))
        dropout = self.dropout if self.training else 0.0
        plain = self.causal and not self.padding and q_positions_BT is None
        mask = None if self.fused and plain else self._mask(q, q_positions_BT, k_positions_BS, valid_BS)
        if self.fused:
            y = F.scaled_dot_product_attention(
                q, k, v, mask, dropout, is_causal=plain, scale=self.scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            return y.permute(self.from_heads)
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (k, v))
        scores_BNTS = (q * (self.scale / self.layer_scale)) @ k.transpose(-1, -2)
        scores_BNTS = scores_BNTS.to(self.softmax_dtype) * self.layer_scale
        if mask is not None:
            scores_BNTS = scores_BNTS.masked_fill(~mask, torch.finfo(self.softmax_dtype).min)
        weights_BNTS = F.dropout(scores_BNTS.softmax(-1), dropout).to(v.dtype)
        return (weights_BNTS @ v).permute(self.from_heads)

    def _mask(
        self, q: Tensor, q_positions: Tensor | None, k_positions: Tensor | None, valid: Tensor | None
    ) -> Tensor | None:
        """True where a token may be attended to, (B or 1, 1, T, S)."""
        mask = None
        if self.causal:
            if q_positions is None or k_positions is None:
                q_positions = k_positions = torch.arange(q.shape[2], device=q.device)[None]
            mask = (q_positions[:, :, None] >= k_positions[:, None, :])[:, None]
        if self.padding and valid is not None:
            real = valid[:, None, None, :].bool()
            mask = real if mask is None else mask & real
        return mask


class Attention(nn.Module):
    """Multi-head or grouped-query self-attention."""

    def __init__(self, config: ModelConfig, layer: int, *, tokens_first: bool = False) -> None:
        super().__init__()
        hidden, dim, bias = config.hidden_size, config.head_dim, config.qkv_has_bias
        self.head_dim = dim
        self.interleaved = config.rotary_config.rotary_interleaved
        self.query = Linear(hidden, config.num_attention_heads * dim, config, bias=bias)
        self.key = Linear(hidden, config.num_kv_heads * dim, config, bias=bias)
        self.value = Linear(hidden, config.num_kv_heads * dim, config, bias=bias)
        self.core = AttentionCore(config, layer, tokens_first=tokens_first)
        self.output = Linear(config.num_attention_heads * dim, hidden, config, bias=config.out_proj_has_bias)

    def forward(
        self, x_BTH: Tensor, turn: Rotation | None, positions_BT: Tensor | None, valid_BT: Tensor | None
    ) -> Tensor:
        split = (-1, self.head_dim)
        q_BTND = self.query(x_BTH).unflatten(-1, split)
        k_BTKD, v_BTKD = (part(x_BTH).unflatten(-1, split) for part in (self.key, self.value))
        if turn is not None:
            q_BTND, k_BTKD = (rotate(x, turn, interleaved=self.interleaved) for x in (q_BTND, k_BTKD))
        y_BTND = self.core(q_BTND, k_BTKD, v_BTKD, positions_BT, positions_BT, valid_BT)
        return self.output(y_BTND.flatten(-2))
