"""Hugging Face's Llama and Mixtral checkpoints in safetensors: read into our names, and written from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from trueup.errors import ConfigError, WeightsError
from trueup_gpt.config import Config

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_LAYER = {
    "input_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "mlp.router.weight": "block_sparse_moe.gate.weight",
}
_ROOT = {
    "word_embeddings.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_EXPERT = {"gate": "w1", "down": "w2", "up": "w3"}


def hugging_face_names(fqn: str, num_experts: int = 1) -> list[str]:
    """The tensor or tensors there that are the parameter here; of stacked experts one for each, in order.

    Example:
        >>> hugging_face_names("layers.3.attention.query.weight")
        ['model.layers.3.self_attn.q_proj.weight']
    """
    if fqn in _ROOT:
        return [_ROOT[fqn]]
    _, number, rest = fqn.split(".", 2)
    layer = f"model.layers.{number}"
    if rest.startswith("mlp.experts."):
        kind = _EXPERT[rest.rpartition(".")[2]]
        return [f"{layer}.block_sparse_moe.experts.{e}.{kind}.weight" for e in range(num_experts)]
    if rest in _LAYER:
        return [f"{layer}.{_LAYER[rest]}"]
    module, _, leaf = rest.rpartition(".")
    return [f"{layer}.{_LAYER[module]}.{leaf}"]


def is_hugging_face(folder: Path) -> bool:
    """Whether it holds such weights."""
    return (folder / INDEX).exists() or (folder / SINGLE).exists()


def check_exchangeable(config: Config) -> None:
    """Whether such a model has a Llama or Mixtral form.

    Raises:
        ConfigError: naming the first key by which it has none.
    """
    model = config.model
    wanted = {
        "position_embedding_type": "rope",
        "normalization": "RMSNorm",
        "hidden_act": "swiglu",
        "use_final_norm": True,
        "encoder_attn_mask_type": "causal",
        "apply_residual_connection_post_norm": False,
    }
    for key, value in wanted.items():
        if getattr(model, key) != value:
            found = getattr(model, key)
            raise ConfigError(f"model_config.{key} is {found!r}; Llama and Mixtral have {value!r}")
    rotary = model.rotary_config
    if rotary.rotary_percent != 1 or rotary.rotary_interleaved or rotary.seq_len_interpolation_factor != 1:
        raise ConfigError("rotary_config: Llama and Mixtral turn all channels, in halves, without a factor")
    if config.moe.num_experts > 1 and config.moe.num_experts_from_layer:
        raise ConfigError("moe_config.num_experts_from_layer: every layer of Mixtral has experts")


class HuggingFaceWeights:
    """The tensors of a folder of safetensors, read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = folder / INDEX
        if index.exists():
            self._files: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        elif (folder / SINGLE).exists():
            with safe_open(folder / SINGLE, "pt") as file:
                self._files = dict.fromkeys(file.keys(), SINGLE)
        else:
            raise WeightsError(f"{folder} holds neither {SINGLE} nor {INDEX}")

    def read(self, fqn: str, num_experts: int = 1) -> Tensor:
        """The whole parameter ``fqn``; stacked experts are stacked. Tied heads are the embedding.

        Raises:
            WeightsError: a tensor is missing.
        """
        names = hugging_face_names(fqn, num_experts)
        if names == ["lm_head.weight"] and names[0] not in self._files:
            names = [_ROOT["word_embeddings.weight"]]
        parts = [self._one(name) for name in names]
        return torch.stack(parts) if ".experts." in fqn else parts[0]

    def _one(self, name: str) -> Tensor:
        if name not in self._files:
            raise WeightsError(f"{self.folder} holds no {name}: is it a Llama or Mixtral of these sizes?")
        with safe_open(self.folder / self._files[name], "pt") as file:
            return file.get_tensor(name)


def hugging_face_config(config: Config) -> dict[str, object]:
    """``config.json`` of the model."""
    check_exchangeable(config)
    model, sparse = config.model, config.moe.num_experts > 1
    found: dict[str, object] = {
        "architectures": ["MixtralForCausalLM" if sparse else "LlamaForCausalLM"],
        "model_type": "mixtral" if sparse else "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": model.seq_length,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rotary_config.rotary_base,
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
        "attention_bias": model.qkv_has_bias,
        "mlp_bias": model.mlp_has_bias and not sparse,
        "torch_dtype": model.params_dtype,
        "initializer_range": model.init_method_std,
    }
    if sparse:
        found |= {
            "num_local_experts": config.moe.num_experts,
            "num_experts_per_tok": config.moe.moe_router_topk,
        }
    return found


def write_hugging_face(folder: Path, config: Config, weights: Mapping[str, Tensor]) -> None:
    """Write ``config.json`` and ``model.safetensors`` from whole parameters by our names.

    Raises:
        ConfigError: the model has no such form.
    """
    facts = hugging_face_config(config)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(_renamed(config, weights))
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _renamed(config: Config, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for fqn, whole in weights.items():
        names = hugging_face_names(fqn, config.moe.num_experts)
        parts = whole.unbind(0) if ".experts." in fqn else [whole]
        for name, one in zip(names, parts, strict=True):
            yield name, one.contiguous()
