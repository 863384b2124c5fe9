"""The weights, under Hugging Face's names, and the tokens that all implementations start from."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tests.matching.implementations.sizes import Sizes


def weights(sizes: Sizes) -> dict[str, Tensor]:
    """Random matrices, norms of ones."""
    generator = np.random.default_rng(20)

    def drawn(*shape: int) -> Tensor:
        return torch.from_numpy((generator.standard_normal(shape) * 0.02).astype(np.float32))

    width, inner, keys = sizes.hidden_size, sizes.ffn_size, sizes.num_groups * sizes.head_size
    out = {
        "model.embed_tokens.weight": drawn(sizes.vocab_size, width),
        "model.norm.weight": torch.ones(width),
        "lm_head.weight": drawn(sizes.vocab_size, width),
    }
    for i in range(sizes.num_layers):
        layer = f"model.layers.{i}."
        out |= {f"{layer}{norm}_layernorm.weight": torch.ones(width) for norm in ("input", "post_attention")}
        for letter, rows in (("q", width), ("k", keys), ("v", keys), ("o", width)):
            out[f"{layer}self_attn.{letter}_proj.weight"] = drawn(rows, width)
        if sizes.num_experts:
            out[f"{layer}block_sparse_moe.gate.weight"] = drawn(sizes.num_experts, width)
        for part in (
            [f"block_sparse_moe.experts.{e}.w" for e in range(sizes.num_experts)]
            if sizes.num_experts
            else ["mlp."]
        ):
            names = "132" if sizes.num_experts else ("gate_proj", "up_proj", "down_proj")
            for name, shape in zip(names, ((inner, width), (inner, width), (width, inner)), strict=True):
                out[f"{layer}{part}{name}.weight"] = drawn(*shape)
    return out


def tokens(step: int, sizes: Sizes) -> Tensor:
    """The batch of a step, int64 [batch, length]."""
    shape = sizes.batch_size, sizes.seq_length
    return torch.from_numpy(np.random.default_rng(100 + step).integers(0, sizes.vocab_size, shape))
