"""Megatron checkpoints written with PyTorch alone, as Megatron-core splits a model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HIDDEN, FFN, HEADS, GROUPS, SIZE = 8, 12, 4, 2, 2
VOCABULARY, PADDED = 50, 64


class ModelType(Enum):
    """Pickled under the name Megatron's own has."""

    encoder_or_decoder = 1


ModelType.__module__ = "megatron.core.enums"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the axes; ``chunks`` of a virtual pipeline."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    chunks: int = 1


def whole_model(
    *, layers: int = 4, experts: int = 0, tied: bool = False, gated: bool = True
) -> dict[str, Tensor]:
    """Every weight of a model, under Megatron-core's names of local layers; no two numbers alike."""
    generator = torch.Generator().manual_seed(3)

    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    rows = FFN * (2 if gated else 1)
    found = {"embedding.word_embeddings.weight": made(PADDED, HIDDEN)}
    for layer in range(layers):
        at = f"decoder.layers.{layer}"
        found[f"{at}.input_layernorm.weight"] = made(HIDDEN)
        found[f"{at}.self_attention.linear_qkv.weight"] = made((HEADS + 2 * GROUPS) * SIZE, HIDDEN)
        found[f"{at}.self_attention.linear_proj.weight"] = made(HIDDEN, HEADS * SIZE)
        found[f"{at}.pre_mlp_layernorm.weight"] = made(HIDDEN)
        if experts:
            found[f"{at}.mlp.router.weight"] = made(experts, HIDDEN)
        for inner in [f"mlp.experts.local_experts.{e}" for e in range(experts)] or ["mlp"]:
            found[f"{at}.{inner}.linear_fc1.weight"] = made(rows, HIDDEN)
            found[f"{at}.{inner}.linear_fc2.weight"] = made(HIDDEN, FFN)
    found["decoder.final_layernorm.weight"] = made(HIDDEN)
    if not tied:
        found["output_layer.weight"] = made(PADDED, HIDDEN)
    return found


def part_of(name: str, whole: Tensor, rank: int, size: int) -> Tensor:
    """What one tensor rank holds."""
    if "linear_fc1" in name and whole.shape[0] == 2 * FFN:
        gate, up = whole.chunk(2)
        return torch.cat([gate.chunk(size)[rank], up.chunk(size)[rank]])
    if any(word in name for word in ("word_embeddings", "output_layer", "linear_qkv", "linear_fc1")):
        return whole.chunk(size)[rank].clone()
    if any(word in name for word in ("linear_proj", "linear_fc2")):
        return whole.chunk(size, dim=1)[rank].clone()
    return whole.clone()


def local_name(
    name: str, first_layer: int, last_layer: int, layout: Layout, expert: int, experts: int
) -> str:
    """The name on a rank; empty where the rank does not hold the weight."""
    words = name.split(".")
    if "layers" in words:
        layer = int(words[2])
        if not first_layer <= layer < last_layer:
            return ""
        words[2] = str(layer - first_layer)
    if "local_experts" in words:
        each = experts // layout.expert
        number = int(words[6])
        if number // each != expert:
            return ""
        words[6] = str(number % each)
    return ".".join(words)


def write(
    folder: Path,
    model: Mapping[str, Tensor],
    layout: Layout,
    *,
    layers: int = 4,
    experts: int = 0,
    counts: tuple[int, ...] = (),
) -> Path:
    """Write every rank's file and the text that names the iteration; returns ``folder``. ``counts`` are the
    layers of each stage, where stages are uneven."""
    for tensor in range(layout.tensor):
        for stage in range(layout.pipeline):
            for expert in range(layout.expert):
                chunks = [
                    _chunk(model, layout, tensor, stage, expert, chunk, layers, experts, counts)
                    for chunk in range(layout.chunks)
                ]
                name = f"mp_rank_{tensor:02d}"
                name += f"_{stage:03d}" if layout.pipeline > 1 else ""
                name += f"_{expert:03d}" if layout.expert > 1 else ""
                _save(folder / "iter_0000100" / name, chunks, layout, layers, experts)
    (folder / "latest_checkpointed_iteration.txt").write_text("100")
    return folder


def _chunk(
    model: Mapping[str, Tensor],
    layout: Layout,
    tensor: int,
    stage: int,
    expert: int,
    chunk: int,
    layers: int,
    experts: int,
    counts: tuple[int, ...],
) -> dict[str, Any]:
    each = counts[stage] if counts else layers // layout.pipeline // layout.chunks
    first = sum(counts[:stage]) if counts else (chunk * layout.pipeline + stage) * each
    begins = stage == 0 and chunk == 0
    ends = stage == layout.pipeline - 1 and chunk == layout.chunks - 1
    held: dict[str, Any] = {}
    for name, whole in model.items():
        if name.startswith("embedding") and not begins:
            continue
        if name.startswith(("decoder.final", "output_layer")) and not ends:
            continue
        local = local_name(name, first, first + each, layout, expert, experts)
        if local:
            held[local] = part_of(name, whole, tensor, layout.tensor)
            held[f"{local.rpartition('.')[0]}._extra_state"] = None
    return held


def _save(folder: Path, chunks: list[dict[str, Any]], layout: Layout, layers: int, experts: int) -> None:
    folder.mkdir(parents=True)
    arguments = argparse.Namespace(
        num_layers=layers,
        num_experts=experts or None,
        hidden_size=HIDDEN,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        expert_model_parallel_size=layout.expert,
        vocab_size=VOCABULARY,
        padded_vocab_size=PADDED,
        params_dtype=torch.bfloat16,
        swiglu=True,
    )
    models = {"model": chunks[0]} if layout.chunks == 1 else {f"model{n}": c for n, c in enumerate(chunks)}
    whole = {"args": arguments, "checkpoint_version": 3.0, "iteration": 100, **models}
    torch.save(whole, folder / "model_optim_rng.pt")
