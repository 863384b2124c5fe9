"""Two training steps of one implementation, from the same weights and on the same tokens as the others.

python -m tests.matching.implementations.train NAME [--change NAME] [--sizes NAME] [--sgd]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.matching.implementations import inputs, megatron, torch_moe, torchtitan
from tests.matching.implementations.sizes import ALL_SIZES, Sizes
from tests.matching.implementations.weights import for_megatron, for_torchtitan

NAMES = ("hf", "megatron", "torchtitan")


def huggingface(sizes: Sizes) -> nn.Module:
    """A random Llama of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.ffn_size,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_groups,
        max_position_embeddings=4 * sizes.seq_length,
        rms_norm_eps=sizes.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rope_base},
        tie_word_embeddings=False,
        use_cache=False,
    )
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config)


def build(name: str, sizes: Sizes) -> nn.Module:
    """One implementation with the common weights."""
    weights = inputs.weights(sizes)
    model: nn.Module
    if name == "hf":
        model = huggingface(sizes)
    elif name == "megatron":
        model, weights = megatron.GPTModel(sizes), for_megatron(weights, sizes)
    elif name == "torch_moe":
        model, weights = torch_moe.Transformer(sizes), for_torchtitan(weights, sizes)
    else:
        model, weights = torchtitan.Transformer(sizes), for_torchtitan(weights, sizes)
    model.load_state_dict(weights)
    return model


def plant(model: nn.Module, change: str, sizes: Sizes) -> None:
    """Make one fault, in layer 1."""
    modules = dict(model.named_modules())

    def of_layer(*ends: str) -> Any:
        return next(m for n, m in modules.items() if "layers.1." in n and n.endswith(ends))

    if change == "norm_eps":
        of_layer("pre_mlp_layernorm", "ffn_norm").eps = 1e-2
    elif change == "attention_scale":
        of_layer("core_attention").norm_factor *= 1.05
    elif change == "weight":
        with torch.no_grad():
            of_layer("linear_fc2", "feed_forward.w2").weight[3, 5] += 0.05
    elif change == "gradient":
        weight = of_layer("linear_proj", "attention.wo").weight
        weight.register_hook(lambda gradient: gradient * 1.01)
    else:
        raise SystemExit(f"no change is called {change}")


def loss_of(model: nn.Module, name: str, tokens: Tensor) -> Tensor:
    """Mean cross entropy of the next token."""
    result = model(input_ids=tokens) if name == "hf" else model(tokens)
    logits = result.logits if name == "hf" else result
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train(
    name: str, *, sizes: Sizes, change: str | None = None, steps: int = 2, sgd: bool = False
) -> list[float]:
    """Losses of all steps."""
    torch.set_num_threads(1)
    model = build(name, sizes)
    if change is not None:
        plant(model, change, sizes)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if sgd:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    losses = []
    for step in range(steps):
        loss = loss_of(model, name, inputs.tokens(step, sizes))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=(*NAMES, "torch_moe"))
    parser.add_argument("--change")
    parser.add_argument("--sizes", choices=ALL_SIZES, default="plain")
    parser.add_argument("--sgd", action="store_true")
    given = parser.parse_args()
    print(train(given.name, sizes=ALL_SIZES[given.sizes], change=given.change, sgd=given.sgd))
