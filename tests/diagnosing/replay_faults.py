"""Faults for models of two kinds, each with the module that is to be charged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Plant = Callable[[Any], None]
Fault = tuple[Plant, str]
"""what is done to the model, and its owner"""


class WrongSilu(torch.autograd.Function):
    """Right forward, backward 0.3 % too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.silu(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return gradients[0] * (s + x * s * (1 - s)) * 1.003


class WrongSiluModule(nn.Module):
    """As a drop-in activation."""

    def forward(self, x: Tensor) -> Tensor:
        return WrongSilu.apply(x)


def _instead(module: Any, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    module.forward = change(module.forward)


# -- HF Llama ------------------------------------------


def _llama_mlp_order(model: Any) -> None:
    """The parent's own code between its children: gate and up swapped."""
    mlp = model.model.layers[0].mlp
    mlp.forward = lambda x: mlp.down_proj(mlp.act_fn(mlp.up_proj(x)) * mlp.gate_proj(x))


def _llama_residual(model: Any) -> None:
    layer = model.model.layers[1]

    def change(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, *args, **kwargs: forward(x, *args, **kwargs) + 0.01 * x

    _instead(layer, change)


def _llama_rope(model: Any) -> None:
    model.model.rotary_emb.inv_freq[1] *= 1.02


def _llama_detach(model: Any) -> None:
    _instead(model.model.layers[1].self_attn.v_proj, lambda forward: lambda x: forward(x.detach()))


def _llama_final_norm(model: Any) -> None:
    model.model.norm.weight.register_hook(lambda gradient: gradient * 1.01)


LLAMA: dict[str, Fault] = {
    "norm-eps": (
        lambda m: setattr(m.model.layers[1].post_attention_layernorm, "variance_epsilon", 1e-4),
        "model.layers.1.post_attention_layernorm",
    ),
    "attention-scale": (
        lambda m: setattr(m.model.layers[0].self_attn, "scaling", m.model.layers[0].self_attn.scaling * 1.01),
        "model.layers.0.self_attn",
    ),
    "gate-and-up-swapped": (_llama_mlp_order, "model.layers.0.mlp"),
    "residual": (_llama_residual, "model.layers.1"),
    "rope-frequency": (_llama_rope, "model.rotary_emb"),
    "activation": (
        lambda m: setattr(m.model.layers[2].mlp, "act_fn", nn.GELU()),
        "model.layers.2.mlp.act_fn",
    ),
    "backward-of-activation": (
        lambda m: setattr(m.model.layers[1].mlp, "act_fn", WrongSiluModule()),
        "model.layers.1.mlp.act_fn",
    ),
    "weight-gradient": (
        lambda m: m.model.layers[2].mlp.up_proj.weight.register_hook(lambda g: g * 1.01) and None,
        "model.layers.2.mlp.up_proj",
    ),
    "detached": (_llama_detach, "model.layers.1.self_attn.v_proj"),
    "norm-weight-gradient": (_llama_final_norm, "model.norm"),
}


# -- the collection's GPT ------------------------------------------


def _gpt_mask(model: Any) -> None:
    model.layers[1].attn.mask_offset = 2


def _gpt_residual(model: Any) -> None:
    block = model.layers[0]

    def forward(x: Tensor) -> Tensor:
        x = x + 1.001 * block.attn(block.ln1(x))
        return x + block.mlp(block.ln2(x))

    block.forward = forward


def _gpt_scaled_by_hook(model: Any) -> None:
    mlp = model.layers[1].mlp

    def forward(x: Tensor) -> Tensor:
        hidden = mlp.up(x)
        hidden = hidden * 1.0
        hidden.register_hook(lambda gradient: gradient * 1.01)
        return mlp.drop(mlp.down(mlp.act(hidden)))

    mlp.forward = forward


def _gpt_head_transposed(model: Any) -> None:
    _instead(model.head, lambda forward: lambda x: forward(x) + 1e-3)


def _gpt_embedding_scale(model: Any) -> None:
    _instead(model.emb, lambda forward: lambda ids: forward(ids) * math.sqrt(1.02))


def _gpt_detach(model: Any) -> None:
    """Cut by the parent's own code."""
    block = model.layers[1]

    def forward(x: Tensor) -> Tensor:
        x = x + block.attn(block.ln1(x.detach()))
        return x + block.mlp(block.ln2(x))

    block.forward = forward


GPT: dict[str, Fault] = {
    "norm-eps": (lambda m: setattr(m.layers[0].ln2, "eps", 1e-3), "layers.0.ln2"),
    "attention-scale": (
        lambda m: setattr(m.layers[0].attn, "scale", m.layers[0].attn.scale * 1.01),
        "layers.0.attn",
    ),
    "mask-off-by-one": (_gpt_mask, "layers.1.attn"),
    "gelu-tanh": (lambda m: setattr(m.layers[1].mlp, "act", nn.GELU("tanh")), "layers.1.mlp.act"),
    "rope-bfloat16": (
        lambda m: setattr(m.layers[1].attn.rotary, "compute_dtype", torch.bfloat16),
        "layers.1.attn.rotary",
    ),
    "residual": (_gpt_residual, "layers.0"),
    "hook-in-the-middle": (_gpt_scaled_by_hook, "layers.1.mlp"),
    "weight-gradient": (
        lambda m: m.layers[0].mlp.down.weight.register_hook(lambda g: g * 1.01) and None,
        "layers.0.mlp.down",
    ),
    "head": (_gpt_head_transposed, "head"),
    "embedding-scale": (_gpt_embedding_scale, "emb"),
    "detached-by-its-block": (_gpt_detach, "layers.1"),
}
