"""The model of one process: its pipeline stages, cut by the layout table and filled with weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

import trueup
from trueup_gpt.config import Config
from trueup_gpt.parallel.layout import Layout, layout_for
from trueup_gpt.parallel.places import ParameterShare
from trueup_gpt.parallel.stages import (
    TIED,
    has_masters,
    parameter_shapes,
    rank_of_stage,
    stage_layers,
    stages_of_ranks,
)
from trueup_gpt.parallel.traced import traced_layout
from trueup_gpt.torch.model import GPTModel
from trueup_gpt.torch.parallel.apply import apply_layout, fill
from trueup_gpt.torch.parallel.fully_sharded import FullySharded, parameters_of
from trueup_gpt.torch.parallel.masters import Masters
from trueup_gpt.torch.parallel.mesh import Mesh
from trueup_gpt.torch.parallel.pieces import Copies, Engine, ZeroOne, gradient_of, local


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
    places: dict[str, ParameterShare]
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
    names = list(parameter_shapes(config))
    stages: list[Stage] = []
    places: dict[str, ParameterShare] = {}
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
    trueup.declare_layout(traced_layout(config, layout, mesh, stages_of_ranks(config)))
    return parallel


def _engine(parallel: Parallel) -> Engine:
    level, mesh = parallel.config.parallel.zero_level, parallel.mesh
    if level in ("z2", "z3") and mesh.size("edp", "ep", "cp") > 1:
        return FullySharded(parallel.stages, parallel.places, mesh, keep_gathered=level == "z2")
    kind = ZeroOne if level else Copies
    return kind(parallel.parameters, parallel.places, mesh)


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
