"""Trains a small model in one layout and hands back what can be compared with any other."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trueup_gpt.config import Config, config_from, data_parallel_size
from trueup_gpt.data import open_data
from trueup_gpt.data.source import Portion
from trueup_gpt.parallel.mesh import DATA, mesh_sizes
from trueup_gpt.result import StepResult
from trueup_gpt.torch.optimizers import build_optimizer
from trueup_gpt.torch.parallel.mesh import Mesh, start_mesh
from trueup_gpt.torch.parallel.pieces import Piece
from trueup_gpt.torch.parallel.stages import Parallel, build
from trueup_gpt.torch.session import groups_of
from trueup_gpt.torch.step import TrainStep

STEPS = 2
"""enough for weights that moments of two gradients have changed; benchmarks/layouts.py takes ten"""
BASE: dict[str, dict[str, Any]] = {
    "training_config": {"seed": 7, "grad_clip_kwargs": {"clip_value": 0.5}},
    "model_config": {
        "vocab_size": 257,
        "seq_length": 16,
        "num_layers": 2,
        "hidden_size": 32,
        "ffn_hidden_size": 48,
        "num_attention_heads": 4,
        "group_query_attention": True,
        "num_query_groups": 2,
        "position_embedding_type": "rope",
        "normalization": "RMSNorm",
        "hidden_act": "swiglu",
        "untie_embeddings_and_output_weights": True,
        "init_method_std": 0.05,
    },
    "dataset_config": {"dataset_dir": "pydoc:topics", "batch_size": 2, "micro_batch_num": 2, "shuffle": True},
    "optimizer_config": {"learning_rate": 0.01, "weight_decay": 0.1},
}
MOE = {
    "num_experts": 4,
    "moe_router_topk": 2,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": 0.05,
    "moe_z_loss_coeff": 0.01,
}
GPT2 = {"position_embedding_type": "absolute", "normalization": "LayerNorm", "hidden_act": "gelu"}
Box = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass
class Run:
    """What one layout gave, put together from its processes."""

    losses: list[float]
    norms: list[float]
    local_norms: list[dict[str, float]]
    weights: dict[str, NDArray[Any]] = field(default_factory=dict)
    gradients: dict[str, NDArray[Any]] = field(default_factory=dict)
    """of the last step, clipped"""


def configuration(dtype: str = "float64", **sections: dict[str, Any]) -> dict[str, Any]:
    """The small model's configuration, changed: ``configuration(parallel={...}, model={...})``."""
    plain = copy.deepcopy(BASE)
    names = ("params_dtype", "compute_dtype", "softmax_compute_dtype", "residual_connection_dtype")
    plain["model_config"] |= dict.fromkeys(names, dtype)
    for name, section in sections.items():
        plain.setdefault(f"{name}_config", {}).update(section)
    return plain


def cut(sections: dict[str, dict[str, Any]], size: int, dtype: str = "float64") -> dict[str, Any]:
    """The configuration of a layout for ``size`` processes, with microbatches for each of them."""
    config = config_from(configuration(**sections))
    dp = data_parallel_size(config, size)
    each = 2 if dp == 1 or config.parallel.pipeline_model_parallel_size > 1 else 1
    dataset = {"micro_batch_num": dp * each, **sections.get("dataset", {})}
    return configuration(dtype, **{**sections, "dataset": dataset})


def start(plain: dict[str, Any]) -> tuple[Config, Mesh, Parallel, TrainStep]:
    """Model, optimizer and step in this process; micro_batch_num is of all data-parallel ranks together."""
    mesh = _mesh(config_from(plain))
    dealt = {"micro_batch_num": plain["dataset_config"]["micro_batch_num"] // mesh.size(*DATA)}
    config = config_from(plain | {"dataset_config": plain["dataset_config"] | dealt})
    parallel = build(config, mesh)
    optimizer = build_optimizer(config.optimizer, groups_of(parallel))
    return config, mesh, parallel, TrainStep(parallel, optimizer, config, num_steps=STEPS)


_MESHES: dict[str, Mesh] = {}
"""groups are made once: layouts of the same sizes share them"""


def _mesh(config: Config) -> Mesh:
    sizes = str(mesh_sizes(config, int(os.environ.get("WORLD_SIZE", "1"))))
    if sizes not in _MESHES:
        _MESHES[sizes] = start_mesh(config, "cpu")
    return _MESHES[sizes]


def portion(config: Config, mesh: Mesh, step: int) -> Portion:
    """This process's microbatches of a step."""
    return Portion(
        step=step,
        dp_rank=mesh.coordinate(*DATA),
        dp_size=mesh.size(*DATA),
        num_microbatches=config.dataset.micro_batch_num,
    )


def train(plain: dict[str, Any], steps: int = STEPS) -> tuple[list[StepResult], list[Any], list[Any]]:
    """In this process: results, and its parts of weights and gradients."""
    config, mesh, parallel, step = start(plain)
    data, _ = open_data(config)
    results = [step(data.read(portion(config, mesh, number))) for number in range(steps)]
    return results, weights_of(parallel), [_gradient(piece) for piece in parallel.engine.pieces]


def weights_of(parallel: Parallel) -> list[Any]:
    """Name, whole shape, offset and values of what this process computes with."""
    return [
        (fqn, parallel.places[fqn].shape, parallel.places[fqn].offset, _whole(parameter.detach()))
        for fqn, parameter in parallel.parameters.items()
    ]


def _whole(tensor: Tensor) -> NDArray[Any]:
    """What FSDP2 has cut is gathered; other cuts stay."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return (whole.float() if whole.dtype is torch.bfloat16 else whole).numpy().copy()  # type: ignore[no-any-return]


def _gradient(piece: Piece) -> Any:
    gradient = piece.parameter.grad
    assert gradient is not None
    place = piece.place
    return place.fqn, place.shape, place.offset, place.size, piece.flat, _whole(gradient)


def run(plain: dict[str, Any], size: int, steps: int = STEPS) -> Run:
    """Train with ``size`` processes, or in this one."""
    if size == 1:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        parts = [train(plain, steps)]
        torch.set_num_threads(before)
    else:
        from tests.trainer.worlds import world

        parts = world(size).run("tests.trainer.layouts:train", plain, steps)
    first = parts[0][0]
    for results, _, _ in parts[1:]:
        assert [one.loss for one in results] == [one.loss for one in first], (
            "processes do not agree on the loss"
        )
        assert [one.grad_norm for one in results] == [one.grad_norm for one in first]
    return Run(
        [one.loss for one in first],
        [one.grad_norm for one in first],
        [one.local_norms for one in first],
        merged([(f, s, o, None, None, v) for _, weights, _ in parts for f, s, o, v in weights]),
        merged([one for _, _, gradients in parts for one in gradients]),
    )


def merged(parts: list[Any]) -> dict[str, NDArray[Any]]:
    """Whole tensors; every element must be there, and processes that have the same one must agree."""
    found: dict[str, NDArray[Any]] = {}
    for fqn, shape, offset, size, flat, values in parts:
        whole = found.setdefault(fqn, np.full(shape, np.nan, values.dtype))
        if flat is None:
            place: Any = tuple(slice(o, o + n) for o, n in zip(offset, values.shape, strict=True))
        else:
            at = np.unravel_index(np.arange(*flat), size)
            place = tuple(one + o for one, o in zip(at, offset, strict=True))
        held = whole[place]
        there = ~np.isnan(held)
        assert np.array_equal(held[there], values[there]), f"{fqn}: processes hold different values"
        whole[place] = values
    for fqn, whole in found.items():
        assert not np.isnan(whole).any(), f"{fqn}: no process holds some of its elements"
    return found


def differences(found: Run, expected: Run) -> dict[str, float]:
    """The largest absolute difference of each kind; of norms relative."""
    steps = zip(found.local_norms, expected.local_norms, strict=True)
    return {
        "loss": max(abs(a - b) for a, b in zip(found.losses, expected.losses, strict=True)),
        "gradient norm": max(abs(a / b - 1) for a, b in zip(found.norms, expected.norms, strict=True)),
        "local norm": max(abs(a[fqn] - b[fqn]) / max(1.0, b[fqn]) for a, b in steps for fqn in b),
        "gradient": _furthest(found.gradients, expected.gradients),
        "weight": _furthest(found.weights, expected.weights),
    }


def _furthest(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]]) -> float:
    assert found.keys() == expected.keys()
    return max(float(np.abs(found[fqn] - expected[fqn]).max()) for fqn in expected)


@cache
def _reference(key: str, steps: int) -> Run:
    return run(json.loads(key), 1, steps)


def reference(plain: dict[str, Any], steps: int = STEPS) -> Run:
    """The same mathematics in one process; trained once for each configuration."""
    alone = {name: section for name, section in plain.items() if name != "parallel_config"}
    return _reference(json.dumps(alone, sort_keys=True), steps)
