"""The model of one process: its pipeline stages, cut by the layout table and filled with weights."""

from __future__ import annotations

from dataclasses import dataclass, field

from mindspore import Parameter, Tensor, mint, nn, ops

import trueup
from trueup_gpt.config import Config
from trueup_gpt.mindspore.model import GPTModel
from trueup_gpt.mindspore.parallel.apply import apply_layout, named_parameters
from trueup_gpt.mindspore.parallel.collectives import all_reduce
from trueup_gpt.mindspore.parallel.mesh import Group, Mesh, group_of
from trueup_gpt.mindspore.parallel.pieces import Copies, Engine, Gradients, Piece, ZeroOne
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


class Stage(nn.Cell):
    """A stage as it is run: the last one gives the weighted loss and keeps the plain one."""

    def __init__(self, model: GPTModel, number: int) -> None:
        super().__init__(auto_prefix=False)
        self.model, self.number = model, number
        self.losses: list[Tensor] = []

    def construct(self, x: Tensor, *, loss_weight: Tensor, **batch: Tensor) -> Tensor:
        y = self.model(x, loss_weight=loss_weight, **batch)
        if not self.model.post_process:
            return y
        loss = y[0]
        self.losses.append(ops.stop_gradient(loss))
        return loss * mint.sum(loss_weight).astype(loss.dtype)


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
    parameters: dict[str, Parameter] = field(default_factory=dict)
    """those that the model computes with here"""
    engine: Engine = field(init=False)
    tied_group: Group | None = None
    """first and last stage, where they are in two processes and share a weight"""

    def named(self) -> list[tuple[str, Parameter, int]]:
        """What the optimizer of this process updates: name, parameter, number of dims of the whole."""
        return [(piece.fqn, piece.parameter, len(piece.place.shape)) for piece in self.engine.pieces]

    def whole_piece(self, fqn: str) -> Piece:
        """A parameter that the model computes with, as it is held here."""
        place = self.places[fqn]
        return Piece(place=place, parameter=self.parameters[fqn], copies=place.copies(self.mesh))

    @property
    def counted_elsewhere(self) -> tuple[str, ...]:
        """Parameters that another stage has as well, and counts."""
        return (TIED,) if self.tied_group is not None and self.stages[0].number != 0 else ()

    def reduce_gradients(self, gradients: Gradients) -> None:
        """Sum what the first and the last stage share, then what data- and tensor-parallel ranks do."""
        if self.tied_group is not None:
            gradients[TIED] = all_reduce(gradients[TIED], self.tied_group)
        self.engine.reduce(gradients)


def build(config: Config, mesh: Mesh) -> Parallel:
    """Make this process's part of the model."""
    layout, by_stage = layout_for(config), stage_layers(config)
    stages: list[Stage] = []
    places: dict[str, ParameterShare] = {}
    for number in stages_of_ranks(config)[mesh.coordinate("pp")]:
        model = GPTModel(
            config.model,
            config.moe,
            layers=by_stage[number],
            pre_process=number == 0,
            post_process=number == len(by_stage) - 1,
            recompute=bool(config.parallel.recompute),
            tokens_first=config.tokens_dim == 0,
        )
        places |= apply_layout(model, layout, mesh, config)
        stages.append(Stage(model, number))
    parallel = Parallel(config, mesh, layout, stages, places, list(parameter_shapes(config)), len(by_stage))
    _tie(parallel)
    for stage in stages:
        stage.set_train()
        parallel.parameters |= named_parameters(stage.model)
    kind = ZeroOne if config.parallel.zero_level else Copies
    parallel.engine = kind(parallel.parameters, places, mesh, masters=has_masters(config))
    trueup.declare_layout(traced_layout(config, layout, mesh, stages_of_ranks(config)))
    return parallel


def _tie(parallel: Parallel) -> None:
    """A group that sums the shared weight's gradients, where first and last stage are in two processes."""
    config, mesh = parallel.config, parallel.mesh
    if config.model.untie_embeddings_and_output_weights or parallel.num_stages == 1:
        return
    peers, last = mesh.peers("pp"), rank_of_stage(config, parallel.num_stages - 1)
    if mesh.rank in (peers[0], peers[last]):
        parallel.tied_group = group_of(mesh, [peers[0], peers[last]])
