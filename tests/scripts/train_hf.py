"""Trains a small random Hugging Face model for three steps and prints its losses: ``train_hf.py llama``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama() -> nn.Module:
    """Two layers, grouped queries."""
    config = transformers.LlamaConfig(**SIZES, intermediate_size=64, num_key_value_heads=2, use_cache=False)
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    """Two layers, tied head, dropout."""
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config)


def qwen2_moe() -> nn.Module:
    """Two layers of four experts, two a token, and a shared one."""
    config = transformers.Qwen2MoeConfig(
        **SIZES,
        intermediate_size=64,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=32,
        output_router_logits=True,
        use_cache=False,
    )
    return transformers.Qwen2MoeForCausalLM(config)


MODELS: dict[str, Callable[[], nn.Module]] = {f.__name__: f for f in (llama, gpt2, qwen2_moe)}


def train(name: str, prepare: Callable[[Any], object] = lambda model: None) -> list[float]:
    """Three steps; ``prepare`` may change the model first."""
    torch.manual_seed(0)
    model = MODELS[name]()
    model.train()
    prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for step in range(3):
        ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(step))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    print(*[loss.hex() for loss in train(sys.argv[1])], flush=True)
