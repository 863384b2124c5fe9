"""ZeRO-2 and ZeRO-3 by torch's FSDP2: what tp has left whole or cut is cut over the data-parallel ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from trueup import Replicate
from trueup_gpt.parallel.mesh import DATA_AXES
from trueup_gpt.parallel.places import ParameterShare
from trueup_gpt.torch.model.experts import Experts
from trueup_gpt.torch.parallel.mesh import Mesh
from trueup_gpt.torch.parallel.pieces import Piece, gradient_of, local, sum_over


class FullySharded:
    """Layers, and what is left of a stage, are units that FSDP2 gathers before use and scatters after.

    Args:
        stages: the modules that run, each with its layers under ``model.layers``.
        places: of the parameters before they were sharded.
        mesh: of the run.
        keep_gathered: ZeRO-2: parameters stay whole from forward to backward.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        places: Mapping[str, ParameterShare],
        mesh: Mesh,
        *,
        keep_gathered: bool,
    ) -> None:
        self._mesh, self._reshard = mesh, not keep_gathered
        for stage in stages:
            parted = self._shard_experts(stage)
            for unit in (*layers_of(stage), stage):
                self._shard(unit, DATA_AXES, without=parted)
            for module in stage.modules():
                if isinstance(module, FSDPModule):
                    module.set_gradient_divide_factor(1.0)
                    module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
        self.pieces = []
        for fqn, parameter in parameters_of(stages).items():
            place = places[fqn]
            copies = place.copies(mesh, besides=DATA_AXES)
            self.pieces.append(Piece(place=place, parameter=parameter, copies=copies))

    def _shard(
        self, module: nn.Module, axes: Sequence[str], without: Set[nn.Parameter] = frozenset()
    ) -> None:
        assert self._mesh.device_mesh is not None
        over = self._mesh.device_mesh["_".join(self._mesh.axes(axes))]
        fully_shard(module, mesh=over, reshard_after_forward=self._reshard, ignored_params=set(without))

    def _shard_experts(self, stage: nn.Module) -> set[nn.Parameter]:
        """What ep has cut is cut over the other data axes alone; returns what is left as it is."""
        if self._mesh.size("ep") == 1:
            return set()
        axes = self._mesh.axes([axis for axis in DATA_AXES if axis != "ep"])
        left: set[nn.Parameter] = set()
        for module in stage.modules():
            if isinstance(module, Experts):
                if axes:
                    self._shard(module, axes)
                else:
                    left.update(module.parameters())
        return left

    def reduce(self) -> None:
        """FSDP2 has reduced over the data-parallel ranks in backward; what tp ranks share is left."""
        partial = [
            piece
            for piece in self.pieces
            if self._mesh.axes(piece.place.axes(Replicate))
            and "tp" in self._mesh.axes(piece.place.axes(Replicate))
        ]
        if partial:
            sum_over((local(gradient_of(piece.parameter)) for piece in partial), self._mesh.group("tp"))

    def publish(self) -> None:
        """Nothing: parameters are gathered when they are used."""

    def zero_grad(self) -> None:
        """Gradients are made anew."""
        for piece in self.pieces:
            piece.parameter.grad = None


def layers_of(stage: nn.Module) -> list[nn.Module]:
    """The units of a stage."""
    return list(stage.get_submodule("model.layers").children())


def parameters_of(stages: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    """The parameters of this process's stages, by the names they have in the model."""
    return {
        fqn.removeprefix("model."): parameter
        for stage in stages
        for fqn, parameter in stage.named_parameters()
    }
