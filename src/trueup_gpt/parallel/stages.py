"""The model of one process: its pipeline stages, cut by the layout table and filled with weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

import trueup
from trueup_gpt.config import Config
from trueup_gpt.model import GPTModel
from trueup_gpt.parallel.apply import Place, apply_layout, fill
from trueup_gpt.parallel.fully_sharded import FullySharded, parameters_of
from trueup_gpt.parallel.layout import Layout, layout_for
from trueup_gpt.parallel.masters import Masters
from trueup_gpt.parallel.mesh import Mesh
from trueup_gpt.parallel.pieces import Copies, Engine, ZeroOne, gradient_of, local
from trueup_gpt.parallel.traced import traced_layout

TIED = "word_embeddings.weight"


class Stage(nn.Module):
    """A stage as the schedules run it: on the last one it gives the weighted loss and keeps the plain one."""

    model: GPTModel

    def __init__(self, model: GPTModel, number: int) -> None:
        super().__init__()
        self.model, self.number = model, number
        self.losses: list[Tensor] = []

    def forward(self, x: Tensor, *, loss_weight: Tensor, **batch: Tensor) -> Tensor:
        y = self.model(x, loss_weight=loss_weight, **batch)
        if not self.model.post_process:
            return y
        loss = y[0]
        self.losses.append(loss.detach())
        return loss * loss_weight.sum().to(loss.dtype)


@dataclass(slots=True)
class Parallel:
    """All that one process holds of the model."""

    config: Config
    mesh: Mesh
    layout: Layout
    stages: list[Stage]
    places: dict[str, Place]
    """of the parameters held here"""
    names: list[str]
    """of all parameters of the model, of every process"""
    num_stages: int
    engine: Engine = field(init=False)
    tied_group: object = None
    """first and last stage, where they are in two processes and share a weight"""

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Those that the model computes with here."""
        return parameters_of(self.stages)

    def named(self) -> list[tuple[str, nn.Parameter, int]]:
        """What the optimizer of this process updates: name, parameter, number of dims of the whole."""
        return [(piece.fqn, piece.parameter, len(piece.place.shape)) for piece in self.engine.pieces]

    @property
    def counted_elsewhere(self) -> tuple[str, ...]:
        """Parameters that another stage has as well, and counts."""
        return (TIED,) if self.tied_group is not None and self.stages[0].number != 0 else ()

    def reduce_gradients(self) -> None:
        """Sum what the first and the last stage share, then what data- and tensor-parallel ranks do."""
        if self.tied_group is not None:
            dist.all_reduce(local(gradient_of(self.parameters[TIED])), group=self.tied_group)
        self.engine.reduce()

    def adopt(self) -> None:
        """After weights were loaded: the optimizer's copies of them are made again."""
        for piece in self.engine.pieces:
            if piece.computed is not None:
                piece.parameter.data.copy_(piece.computed.data)


def stage_layers(config: Config) -> list[list[int]]:
    """Numbers of the layers of each stage, in the order of the pipeline."""
    parallel, layers = config.parallel, config.model.num_layers
    stages = parallel.pipeline_model_parallel_size * chunks_per_rank(config)
    listed = parallel.num_layer_list
    counts = [n for one in listed for n in (one if isinstance(one, list) else [one])] if listed else []
    counts = counts or [layers // stages] * stages
    starts = [sum(counts[:number]) for number in range(stages)]
    return [list(range(start, start + count)) for start, count in zip(starts, counts, strict=True)]


def chunks_per_rank(config: Config) -> int:
    """Stages of one process."""
    if config.parallel.pipeline_schedule == "zbv":
        return 2
    return config.parallel.virtual_pipeline_model_parallel_size or 1


def rank_of_stage(config: Config, stage: int) -> int:
    """The pipeline rank that has it: round and round, or there and back for the V of zbv."""
    pp = config.parallel.pipeline_model_parallel_size
    if config.parallel.pipeline_schedule == "zbv":
        return min(stage, 2 * pp - 1 - stage)
    return stage % pp


def model_on_meta(
    config: Config, layers: list[int] | None = None, *, first: bool = True, last: bool = True
) -> GPTModel:
    """The model, or some of its layers, with parameters that have shapes but no values."""
    with torch.device("meta"):
        return GPTModel(
            config.model,
            config.moe,
            layers=layers,
            pre_process=first,
            post_process=last,
            recompute=bool(config.parallel.recompute),
            tokens_first=config.tokens_dim == 0,
        )


def build(config: Config, mesh: Mesh, *, fill_weights: bool = True) -> Parallel:
    """Make this process's part of the model.

    Args:
        config: of the run.
        mesh: of the run.
        fill_weights: false: parameters stay on the meta device, for a trial without memory.
    """
    layout, by_stage = layout_for(config), stage_layers(config)
    names = [fqn for fqn, _ in model_on_meta(config).named_parameters()]
    stages: list[Stage] = []
    places: dict[str, Place] = {}
    for number, layers in enumerate(by_stage):
        if rank_of_stage(config, number) == mesh.coordinate("pp"):
            model = model_on_meta(config, layers, first=number == 0, last=number == len(by_stage) - 1)
            places |= apply_layout(model, layout, mesh)
            stages.append(Stage(model, number))
            if fill_weights:
                fill(model, places, config, mesh.device)
    parallel = Parallel(config, mesh, layout, stages, places, names, len(by_stage))
    _tie(parallel)
    if config.model.torch_compile:
        for stage in stages:
            for layer in stage.model.layers.values():
                layer.compile()
    engine = _engine(parallel)
    parallel.engine = Masters(engine) if has_masters(config) else engine
    held: list[list[int]] = [[] for _ in range(mesh.sizes["pp"])]
    for number in range(len(by_stage)):
        held[rank_of_stage(config, number)].append(number)
    trueup.declare_layout(traced_layout(config, layout, mesh, held))
    return parallel


def _engine(parallel: Parallel) -> Engine:
    level, mesh = parallel.config.parallel.zero_level, parallel.mesh
    if level in ("z2", "z3") and mesh.size("edp", "ep", "cp") > 1:
        return FullySharded(parallel.stages, parallel.places, mesh, keep_gathered=level == "z2")
    kind = ZeroOne if level else Copies
    return kind(parallel.parameters, parallel.places, mesh)


def has_masters(config: Config) -> bool:
    """Whether the optimizer updates float32 copies."""
    half = config.model.params_dtype in ("bfloat16", "float16")
    return half and config.optimizer.fp32_master_weights


def _tie(parallel: Parallel) -> None:
    """One parameter where first and last stage are in one process, else a group that sums its gradients."""
    config, mesh = parallel.config, parallel.mesh
    if config.model.untie_embeddings_and_output_weights or parallel.num_stages == 1:
        return
    last = rank_of_stage(config, parallel.num_stages - 1)
    if last == 0:
        if mesh.coordinate("pp") == 0:
            first_model, last_model = parallel.stages[0].model, parallel.stages[-1].model
            last_model.word_embeddings.weight = first_model.word_embeddings.weight
            last_model.output.weight = first_model.word_embeddings.weight
        return
    peers = mesh.peers("pp")
    if mesh.rank in (peers[0], peers[last]):
        parallel.tied_group = dist.new_group([peers[0], peers[last]], use_local_synchronization=True)


def parameter_shapes(config: Config) -> Mapping[str, torch.Size]:
    """Shapes of all parameters of the whole model."""
    return {fqn: parameter.shape for fqn, parameter in model_on_meta(config).named_parameters()}
