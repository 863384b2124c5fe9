"""Parts that every transformer has: products, norms, tables, the feed-forward block, the loss.

Suffixes of names as in ``gpt.py``. Parameters are held in params dtype, products computed in compute dtype.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueup_gpt.config import ModelConfig
from trueup_gpt.torch.model.activations import activation


class SavedTensors(Protocol):
    """What a function of autograd keeps from forward to backward."""

    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class Linear(nn.Module):
    """x W^T + b in compute dtype; the bias is added apart, for a product that is a sum over processes."""

    def __init__(self, inputs: int, outputs: int, config: ModelConfig, *, bias: bool) -> None:
        super().__init__()
        params_dtype = getattr(torch, config.params_dtype)
        self.compute_dtype = getattr(torch, config.compute_dtype)
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=params_dtype))
        self.bias = nn.Parameter(torch.empty(outputs, dtype=params_dtype)) if bias else None

    def multiply(self, x: Tensor) -> Tensor:
        """The product alone."""
        return F.linear(x.to(self.compute_dtype), self.weight.to(self.compute_dtype))

    def forward(self, x: Tensor) -> Tensor:
        y = self.multiply(x)
        return y if self.bias is None else y + self.bias.to(self.compute_dtype)


class Norm(nn.Module):
    """LayerNorm or RMSNorm over H, computed in float32 or wider, given in compute dtype."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        params_dtype = getattr(torch, config.params_dtype)
        self.compute_dtype = getattr(torch, config.compute_dtype)
        self.eps = config.norm_epsilon
        self.weight = nn.Parameter(torch.empty(config.hidden_size, dtype=params_dtype))
        centred = config.normalization == "LayerNorm"
        self.bias = nn.Parameter(torch.empty_like(self.weight)) if centred else None

    def forward(self, x_BTH: Tensor) -> Tensor:
        wide = torch.promote_types(x_BTH.dtype, torch.float32)
        x, weight = x_BTH.to(wide), self.weight.to(wide)
        if self.bias is None:
            y = F.rms_norm(x, x.shape[-1:], weight, self.eps)
        else:
            y = F.layer_norm(x, x.shape[-1:], weight, self.bias.to(wide), self.eps)
        return y.to(self.compute_dtype)


class Embedding(nn.Module):
    """Rows of a table."""

    def __init__(self, rows: int, config: ModelConfig) -> None:
        super().__init__()
        self.rows, dtype = rows, getattr(torch, config.params_dtype)
        self.weight = nn.Parameter(torch.empty(rows, config.hidden_size, dtype=dtype))

    def forward(self, ids_BT: Tensor) -> Tensor:
        return F.embedding(ids_BT, self.weight)


class FeedForward(nn.Module):
    """down(act(up(x))), or down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, wide, bias = config.hidden_size, config.ffn_hidden_size, config.mlp_has_bias
        gated = config.is_gated
        self.activation = activation(config.hidden_act)
        self.gate = Linear(hidden, wide, config, bias=bias) if gated else None
        self.up = Linear(hidden, wide, config, bias=bias)
        self.down = Linear(wide, hidden, config, bias=bias)

    def forward(self, x_BTH: Tensor) -> Tensor:
        y_BTF = self.up(x_BTH)
        if self.gate is None:
            return self.down(self.activation(y_BTF))
        return self.down(self.activation(self.gate(x_BTH)) * y_BTF)


class CrossEntropy(nn.Module):
    """-log softmax(logits)[label] of every token, in float32 unless logits are float64 or are kept."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.as_it_is, self.vocab_size = config.fp16_lm_cross_entropy, config.vocab_size

    def forward(self, logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
        logits_MV = self.widened(logits_BTV).flatten(0, 1)
        return F.cross_entropy(logits_MV, labels_BT.flatten(), reduction="none").view_as(labels_BT)

    def widened(self, logits_BTV: Tensor) -> Tensor:
        """The logits in the dtype of the loss."""
        wide = torch.promote_types(logits_BTV.dtype, torch.float32)
        return logits_BTV if self.as_it_is else logits_BTV.to(wide)


class TokenSum(nn.Module):
    """The sum of a number over all tokens of a microbatch: the number itself, where one process has them."""

    def forward(self, number: Tensor) -> Tensor:
        return number
