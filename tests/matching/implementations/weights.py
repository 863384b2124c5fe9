"""The common weights under the names and in the layouts of the other implementations, moved by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.matching.implementations.sizes import Sizes

Weights = dict[str, Tensor]


def for_megatron(weights: Weights, sizes: Sizes) -> Weights:
    """Query heads beside the key and value head of their group; the vocabulary padded with zeros."""
    made = {}
    missing = -sizes.vocab_size % 64
    pad = torch.zeros(missing, sizes.hidden_size)
    made["embedding.word_embeddings.weight"] = torch.cat([weights["model.embed_tokens.weight"], pad])
    made["output_layer.weight"] = torch.cat([weights["lm_head.weight"], pad])
    made["decoder.final_layernorm.weight"] = weights["model.norm.weight"]
    for i in range(sizes.num_layers):
        old, new = f"model.layers.{i}.", f"decoder.layers.{i}."
        q, k, v = (weights[f"{old}self_attn.{x}_proj.weight"] for x in "qkv")
        parts = []
        for group in range(sizes.num_groups):
            heads = sizes.num_heads // sizes.num_groups * sizes.head_size
            at = slice(group * sizes.head_size, (group + 1) * sizes.head_size)
            parts += [q[group * heads : (group + 1) * heads], k[at], v[at]]
        made[f"{new}self_attention.linear_qkv.weight"] = torch.cat(parts)
        made[f"{new}self_attention.linear_proj.weight"] = weights[f"{old}self_attn.o_proj.weight"]
        gate, up = weights[f"{old}mlp.gate_proj.weight"], weights[f"{old}mlp.up_proj.weight"]
        made[f"{new}mlp.linear_fc1.weight"] = torch.cat([gate, up])
        made[f"{new}mlp.linear_fc2.weight"] = weights[f"{old}mlp.down_proj.weight"]
        made[f"{new}input_layernorm.weight"] = weights[f"{old}input_layernorm.weight"]
        made[f"{new}pre_mlp_layernorm.weight"] = weights[f"{old}post_attention_layernorm.weight"]
    return made


_TITAN = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def for_torchtitan(weights: Weights, sizes: Sizes) -> Weights:
    """Rows of query and key so that a rotary pair's channels are neighbours."""
    made = {
        "tok_embeddings.weight": weights["model.embed_tokens.weight"],
        "norm.weight": weights["model.norm.weight"],
        "output.weight": weights["lm_head.weight"],
    }
    for i in range(sizes.num_layers):
        layer = f"model.layers.{i}.block_sparse_moe."
        made |= {
            f"layers.{i}.feed_forward.{name.removeprefix(layer)}": weight
            for name, weight in weights.items()
            if name.startswith(layer)
        }
        for old, new in _TITAN.items():
            if sizes.num_experts and old.startswith("mlp."):
                continue
            weight = weights[f"model.layers.{i}.{old}.weight"]
            if new in ("attention.wq", "attention.wk"):
                halves = weight.view(-1, 2, sizes.head_size // 2, sizes.hidden_size)
                weight = halves.transpose(1, 2).reshape(weight.shape)
            made[f"layers.{i}.{new}.weight"] = weight
    return made


def for_mindspore(weights: Weights, sizes: Sizes) -> Weights:
    """Everything but the embedding transposed; query, key and value side by side, gate and up too."""
    made = {
        "words.embedding_table": weights["model.embed_tokens.weight"],
        "last.gamma": weights["model.norm.weight"],
        "predict.matrix": weights["lm_head.weight"].T,
    }
    for i in range(sizes.num_layers):
        old, new = f"model.layers.{i}.", f"stack.{i}."
        fused = torch.cat([weights[f"{old}self_attn.{x}_proj.weight"] for x in "qkv"])
        made[f"{new}mix.fused_in.matrix"] = fused.T
        made[f"{new}mix.merge.matrix"] = weights[f"{old}self_attn.o_proj.weight"].T
        made[f"{new}before_mix.gamma"] = weights[f"{old}input_layernorm.weight"]
        made[f"{new}before_feed.gamma"] = weights[f"{old}post_attention_layernorm.weight"]
        made |= _stacked(weights, old, new, sizes) if sizes.num_experts else _fused(weights, old, new)
    return made


def _fused(weights: Weights, old: str, new: str) -> Weights:
    gate_and_up = torch.cat([weights[f"{old}mlp.{x}_proj.weight"] for x in ("gate", "up")])
    return {
        f"{new}feed.widen.matrix": gate_and_up.T,
        f"{new}feed.narrow.matrix": weights[f"{old}mlp.down_proj.weight"].T,
    }


def _stacked(weights: Weights, old: str, new: str, sizes: Sizes) -> Weights:
    """Experts along the first dimension, the router's weight transposed."""
    experts = [f"{old}block_sparse_moe.experts.{e}." for e in range(sizes.num_experts)]
    wide = [torch.cat([weights[f"{expert}w{x}.weight"] for x in "13"]).T for expert in experts]
    return {
        f"{new}feed.router": weights[f"{old}block_sparse_moe.gate.weight"].T,
        f"{new}feed.wide": torch.stack(wide),
        f"{new}feed.narrow": torch.stack([weights[f"{expert}w2.weight"].T for expert in experts]),
    }
