"""What a configuration would need: parameters and memory of each rank, without weights or processes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trueup import Replicate
from trueup_gpt.config import Config
from trueup_gpt.parallel.layout import layout_for
from trueup_gpt.parallel.mesh import DATA_AXES, Mesh, mesh_sizes
from trueup_gpt.parallel.places import ParameterShare, place_of
from trueup_gpt.parallel.stages import (
    chunks_per_rank,
    has_masters,
    parameter_shapes,
    rank_of_stage,
    stage_layers,
    stage_parameters,
)

_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

_STATES = {"AdamW": 2.0, "Adam": 2.0, "mint.AdamW": 2.0, "SpeedAdamW": 2.0, "SGD": 0.0, "Came": 1.0}
"""tensors like the parameter that an optimizer keeps"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Of one pipeline rank, the largest of its tensor- and data-parallel ones. Bytes."""

    pp_rank: int
    layers: int
    parameters: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    """an estimate: Korthikanti et al., "Reducing Activation Recomputation" (2022), equation 2 and 4"""

    @property
    def total(self) -> int:
        """All together; the framework's own is not in it."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Of a whole run."""

    parameters: int
    active_parameters: int
    """that act on a token: less than all, with a mixture of experts"""
    world_size: int
    mesh: str
    ranks: list[RankMemory]


def smallest_world(config: Config) -> int:
    """Fewest processes that the sizes allow."""
    parallel = config.parallel
    return (
        parallel.tensor_model_parallel_size
        * parallel.pipeline_model_parallel_size
        * parallel.context_parallel_size
        * parallel.expert_model_parallel_size
    )


def needs(config: Config, world_size: int | None = None) -> Needs:
    """What each rank would hold.

    Raises:
        ConfigError: the configuration does not fit that number of processes.
    """
    size = world_size or smallest_world(config)
    sizes = mesh_sizes(config, size)
    shapes = parameter_shapes(config)
    total = sum(math.prod(shape) for shape in shapes.values())
    experts = sum(math.prod(shape) for fqn, shape in shapes.items() if ".experts." in fqn)
    idle = experts - experts * config.moe.moe_router_topk // max(config.moe.num_experts, 1) if experts else 0
    meshes = [Mesh(sizes, number * (size // sizes["pp"])) for number in range(sizes["pp"])]
    return Needs(
        parameters=total,
        active_parameters=total - idle,
        world_size=size,
        mesh=str(meshes[0]),
        ranks=[_rank(config, mesh) for mesh in meshes],
    )


def _rank(config: Config, mesh: Mesh) -> RankMemory:
    number, layout, by_stage = mesh.coordinate("pp"), layout_for(config), stage_layers(config)
    places: dict[str, ParameterShare] = {}
    layers = 0
    for stage, held in enumerate(by_stage):
        if rank_of_stage(config, stage) == number:
            named = stage_parameters(config, held, first=stage == 0, last=stage == len(by_stage) - 1)
            places |= {fqn: place_of(fqn, shape, layout, mesh) for fqn, shape in named}
            layers += len(held)
    item = _BYTES[config.model.params_dtype]
    level = config.parallel.zero_level
    whole = sum(math.prod(place.size) for place in places.values())
    cut = sum(math.ceil(math.prod(place.size) / _replicas(place, mesh)) for place in places.values())
    return RankMemory(
        pp_rank=number,
        layers=layers,
        parameters=whole,
        weights=item * (cut if level == "z3" else whole),
        gradients=item * (cut if level in ("z2", "z3") else whole),
        optimizer=int(_state_bytes(config, item) * (cut if level else whole)),
        activations=_activations(config, mesh, layers),
    )


def _state_bytes(config: Config, item: int) -> float:
    """Of the optimizer, for one weight; float32 copies of weights are its own."""
    states = _STATES[config.optimizer.optimizer_type]
    return 4 + 4 * states if has_masters(config) else item * states


def _replicas(place: ParameterShare, mesh: Mesh) -> int:
    return math.prod(mesh.size(axis) for axis in place.axes(Replicate) if axis in DATA_AXES)


def _activations(config: Config, mesh: Mesh, layers: int) -> int:
    model, tp = config.model, mesh.size("tp")
    item = _BYTES[model.compute_dtype]
    tokens = config.dataset.batch_size * model.seq_length // mesh.size("cp")
    stream = tokens * model.hidden_size * item
    wide = tokens * model.ffn_hidden_size * item * (3 if model.is_gated else 2)
    if config.moe.num_experts > 1:
        wide *= config.moe.moe_router_topk
    shared = 5 * stream / (tp if config.parallel.sequence_parallel else 1)
    layer = shared + (4 * stream + wide) / tp
    if not model.use_flash_attention:
        scores = (
            config.dataset.batch_size * model.num_attention_heads * (model.seq_length // mesh.size("cp")) ** 2
        )
        layer += 3 * scores * item / tp
    if config.parallel.recompute:
        layer = stream / (tp if config.parallel.sequence_parallel else 1)
    pp = mesh.size("pp")
    in_flight = min(config.dataset.micro_batch_num, pp - mesh.coordinate("pp")) if pp > 1 else 1
    if config.parallel.pipeline_schedule in ("gpipe", "zbv") or chunks_per_rank(config) > 1:
        in_flight = config.dataset.micro_batch_num
    logits = tokens * model.vocab_size * 4 * 2 / tp if mesh.coordinate("pp") == pp - 1 else 0
    return int(layer * layers * in_flight + logits)
