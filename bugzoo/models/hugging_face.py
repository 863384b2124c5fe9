"""Models of the transformers library, of small random configuration; nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_SMALL = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}


def llama() -> nn.Module:
    """Llama with grouped key and value heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**_SMALL, intermediate_size=128, num_key_value_heads=2, max_position_embeddings=64)
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    """GPT-2: learned positions, tied embedding, dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 256, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64}
    config = GPT2Config(**sizes, bos_token_id=1, eos_token_id=1)
    config._attn_implementation = "eager"
    return GPT2LMHeadModel(config)


def qwen_experts() -> nn.Module:
    """Qwen2 with experts, a shared one, and the router's loss."""
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    sizes: dict[str, Any] = {
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
    }
    sizes |= {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}
    sizes |= {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
    config = Qwen2MoeConfig(**_SMALL, **sizes, output_router_logits=True, router_aux_loss_coef=0.02)
    config._attn_implementation = "eager"
    return Qwen2MoeForCausalLM(config)


MODELS = {"llama": llama, "gpt2": gpt2, "qwen-experts": qwen_experts}


def trained_like(model: nn.Module) -> nn.Module:
    """Norm weights that are not all ones and biases that are not zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(4.0)
    return model
