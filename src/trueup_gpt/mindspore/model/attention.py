"""Self-attention and rotary positions. Suffixes of names as in ``gpt.py``."""

from __future__ import annotations

import mindspore
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.mint.nn import functional as F

from trueup_gpt.config import ModelConfig
from trueup_gpt.mindspore.model.numbers import dtype_named, number
from trueup_gpt.mindspore.model.parts import Linear

Rotation = tuple[Tensor, Tensor]
_SWAP = (0, 2, 1, 3)
_LEAST = {
    mindspore.float16: -65504.0,
    mindspore.bfloat16: -3.3895313892515355e38,
    mindspore.float32: -3.4028234663852886e38,
    mindspore.float64: -1.7976931348623157e308,
}
_ALL, _FROM_FIRST = 0, 2
"""sparse_mode of FlashAttentionScore: the mask is whole; causal from the upper left, by its mask"""
_COMPRESSED = 2048
"""rows and columns of that mask, whatever the length"""


def rotation(positions_BT: Tensor, config: ModelConfig) -> Rotation:
    """Cosines and sines (B, T, 1, D'/2) of the angles by which the first D' channels of a head are turned."""
    rotary = config.rotary_config
    dims = int(config.head_dim * rotary.rotary_percent)
    wide = np.float64 if config.compute_dtype == "float64" else np.float32
    pair = np.arange(0, dims, 2, dtype=wide)
    frequency = wide(rotary.rotary_base) ** (-pair / wide(dims)) / wide(rotary.seq_len_interpolation_factor)
    angle = positions_BT.asnumpy()[:, :, None, None].astype(wide) * frequency
    return Tensor(np.cos(angle)), Tensor(np.sin(angle))


def rotate(x_BTND: Tensor, turn: Rotation, *, interleaved: bool) -> Tensor:
    """Turn pairs of channels; what the rotation does not reach stays as it is."""
    cos, sin = turn
    dims = 2 * cos.shape[-1]
    x, rest = x_BTND, None
    if dims < x_BTND.shape[-1]:  # not mint.split: in 2.10 its gradient mixes the parts up
        x, rest = x_BTND[..., :dims], x_BTND[..., dims:]
    x = x.astype(cos.dtype)
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else mint.chunk(x, 2, -1)
    turned = a * cos - b * sin, b * cos + a * sin
    y = ops.stack(turned, -1).reshape(x.shape) if interleaved else mint.cat(turned, -1)
    y = y.astype(x_BTND.dtype)
    return y if rest is None else mint.cat((y, rest), -1)


class AttentionCore(nn.Cell):
    """softmax(q k^T / sqrt(D)) v, head by head."""

    def __init__(self, config: ModelConfig, layer: int, *, tokens_first: bool = False) -> None:
        super().__init__()
        self.to_heads, self.from_heads = ((1, 2, 0, 3), (2, 0, 1, 3)) if tokens_first else (_SWAP, _SWAP)
        self.causal = "causal" in config.encoder_attn_mask_type
        self.padding = "padding" in config.encoder_attn_mask_type
        self.softmax_dtype = dtype_named(config.softmax_compute_dtype)
        self.fused = config.use_flash_attention
        self.dropout = config.attention_dropout
        self.scale = config.head_dim**-0.5
        self.layer_scale = float(layer + 1) if config.apply_query_key_layer_scaling else 1.0

    def construct(
        self,
        q_BTND: Tensor,
        k_BSKD: Tensor,
        v_BSKD: Tensor,
        q_positions_BT: Tensor | None,
        k_positions_BS: Tensor | None,
        valid_BS: Tensor | None,
    ) -> Tensor:
        q, k, v = (mint.permute(x, self.to_heads) for x in (q_BTND, k_BSKD, v_BSKD))
        if self.fused:
            y_BNTD = self._flash(q, k, v, q_positions_BT, k_positions_BS, valid_BS)
            return mint.permute(y_BNTD, self.from_heads)
        mask = self._mask(q, q_positions_BT, k_positions_BS, valid_BS)
        k, v = (_repeated(x, q.shape[1] // x.shape[1]) for x in (k, v))
        scores_BNTS = mint.matmul(q * number(self.scale / self.layer_scale, q), mint.transpose(k, -1, -2))
        scores_BNTS = scores_BNTS.astype(self.softmax_dtype) * self.layer_scale
        if mask is not None:
            scores_BNTS = scores_BNTS.masked_fill(
                mask, Tensor(_LEAST[self.softmax_dtype], self.softmax_dtype)
            )
        weights_BNTS = F.softmax(scores_BNTS, dim=-1)
        if self.dropout and self.training:
            weights_BNTS = ops.dropout(weights_BNTS, self.dropout)
        return mint.permute(mint.matmul(weights_BNTS.astype(v.dtype), v), self.from_heads)

    def _flash(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_positions: Tensor | None,
        k_positions: Tensor | None,
        valid: Tensor | None,
    ) -> Tensor:
        """Ascend's fused attention: heads of key and value as they are, softmax inside in its own dtype."""
        mode, mask = _ALL, None
        if self.causal and not self.padding and q_positions is None:
            mode, mask = _FROM_FIRST, Tensor(np.triu(np.ones((_COMPRESSED, _COMPRESSED), np.uint8), 1))
        else:
            mask = self._mask(q, q_positions, k_positions, valid)
            if mask is not None:  # (T, S) for all rows, or (B, 1, T, S)
                mask = ops.broadcast_to(mask, (mask.shape[0], 1, q.shape[2], k.shape[2]))
                mask = mask[0, 0] if mask.shape[0] == 1 else mask
        return ops.flash_attention_score(
            q,
            k,
            v,
            q.shape[1],
            attn_mask=mask,
            scalar_value=self.scale,
            input_layout="BNSD",
            sparse_mode=mode,
        )

    def _mask(
        self, q: Tensor, q_positions: Tensor | None, k_positions: Tensor | None, valid: Tensor | None
    ) -> Tensor | None:
        """True where a token may not be attended to, (B or 1, 1, T, S)."""
        mask = None
        if self.causal:
            if q_positions is None or k_positions is None:
                q_positions = k_positions = Tensor(np.arange(q.shape[2])[None])
            mask = (q_positions[:, :, None] < k_positions[:, None, :])[:, None]
        if self.padding and valid is not None:
            padding = ops.logical_not(valid[:, None, None, :])
            mask = padding if mask is None else ops.logical_or(mask, padding)
        return mask


def _repeated(x_BKSD: Tensor, times: int) -> Tensor:
    """Each head for ``times`` queries in a row."""
    if times == 1:
        return x_BKSD
    rows, heads, length, size = x_BKSD.shape
    wide = mint.broadcast_to(x_BKSD.expand_dims(2), (rows, heads, times, length, size))
    return wide.reshape(rows, heads * times, length, size)


class Attention(nn.Cell):
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

    def construct(
        self, x_BTH: Tensor, turn: Rotation | None, positions_BT: Tensor | None, valid_BT: Tensor | None
    ) -> Tensor:
        q_BTND, k_BTKD, v_BTKD = (self._heads(part(x_BTH)) for part in (self.query, self.key, self.value))
        if turn is not None:
            q_BTND, k_BTKD = (rotate(x, turn, interleaved=self.interleaved) for x in (q_BTND, k_BTKD))
        y_BTND = self.core(q_BTND, k_BTKD, v_BTKD, positions_BT, positions_BT, valid_BT)
        return self.output(y_BTND.reshape(*y_BTND.shape[:2], -1))

    def _heads(self, x_BTH: Tensor) -> Tensor:
        return x_BTH.reshape(*x_BTH.shape[:-1], -1, self.head_dim)
