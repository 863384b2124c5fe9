"""What the optimizer of one process updates, and how gradients get there: whole copies, or ZeRO-1.

Gradients are always summed, never averaged: the loss carries the weight of its microbatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from trueup_gpt.parallel.mesh import DATA_AXES
from trueup_gpt.parallel.places import ParameterShare
from trueup_gpt.parallel.traced import piece_facts
from trueup_gpt.torch.parallel.mesh import Mesh
from trueup_gpt.torch.parallel.moving import all_gather, reduce_scatter


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A parameter, or the part of one that this process updates."""

    place: ParameterShare
    """of the parameter"""
    parameter: nn.Parameter
    """the optimizer's"""
    copies: tuple[str, ...]
    """axes along which other processes have the same piece"""
    flat: tuple[int, int] | None = None
    """which elements of the flattened local parameter, where it is a part"""
    computed: nn.Parameter | None = None
    """what the model computes with, where the optimizer's is a float32 copy of it"""

    @property
    def fqn(self) -> str:
        """Of the parameter."""
        return self.place.fqn

    def values(self) -> Tensor:
        """What is held here, as a plain tensor."""
        return local(self.parameter.data)

    def gradient(self) -> Tensor | None:
        """Its gradient, as a plain tensor."""
        return None if self.parameter.grad is None else local(self.parameter.grad)


def local(tensor: Tensor) -> Tensor:
    """A DTensor's own part; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Engine(Protocol):
    """One way to hold parameters and reduce gradients."""

    pieces: list[Piece]

    def reduce(self) -> None:
        """Sum gradients over the processes that have the same parameter."""

    def publish(self) -> None:
        """After the optimizer's step, give every process what it computes with."""

    def zero_grad(self) -> None:
        """Before the next step."""


def sum_over(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Sum tensors over a group in place, as one flat tensor."""
    given = list(tensors)
    if given:
        flat = _flatten_dense_tensors(given)
        dist.all_reduce(flat, group=group)
        for tensor, summed in zip(given, _unflatten_dense_tensors(flat, given), strict=True):
            tensor.copy_(summed)


def _by_axes(
    places: Iterable[ParameterShare], mesh: Mesh, among: tuple[str, ...]
) -> dict[tuple[str, ...], list[ParameterShare]]:
    """Places by those of the axes ``among`` over which their gradients are partial."""
    found: dict[tuple[str, ...], list[ParameterShare]] = {}
    for place in places:
        found.setdefault(place.partial(mesh, among), []).append(place)
    return found


class Copies:
    """Every process of the data-parallel group has the whole of its parameters, and updates all."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], places: Mapping[str, ParameterShare], mesh: Mesh
    ) -> None:
        self._parameters, self._mesh = parameters, mesh
        self._places = [places[fqn] for fqn in parameters]
        self.pieces = [
            Piece(place=place, parameter=parameters[place.fqn], copies=place.copies(mesh))
            for place in self._places
        ]

    def reduce(self) -> None:
        """All-reduce, one flat tensor for each set of axes."""
        for among in (("tp",), DATA_AXES):
            for axes, places in _by_axes(self._places, self._mesh, among).items():
                if axes:
                    sum_over(
                        (gradient_of(self._parameters[one.fqn]) for one in places), self._mesh.group(*axes)
                    )

    def publish(self) -> None:
        """Nothing: every process has updated all."""

    def zero_grad(self) -> None:
        """Gradients are made anew."""
        for parameter in self._parameters.values():
            parameter.grad = None


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """The gradient; zeros where nothing arrived, as with an expert that got no token."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


class _Bucket:
    """Parameters with the same data-parallel axes end to end in one tensor, their gradients in another."""

    def __init__(
        self,
        places: list[ParameterShare],
        parameters: Mapping[str, nn.Parameter],
        mesh: Mesh,
        axes: tuple[str, ...],
    ):
        self.group = mesh.group(*axes)
        size, rank = mesh.size(*axes), mesh.coordinate(*axes)
        total = sum(parameters[place.fqn].numel() for place in places)
        length = -(-total // size)
        example = parameters[places[0].fqn]
        self.values = torch.zeros(length * size, dtype=example.dtype, device=example.device)
        self.gradients = torch.zeros_like(self.values)
        own = slice(rank * length, (rank + 1) * length)
        self.own_values, self.own_gradient = self.values[own], torch.zeros_like(self.values[own])
        self.pieces: list[Piece] = []
        start = 0
        for place in places:
            parameter = parameters[place.fqn]
            stop = start + parameter.numel()
            self.values[start:stop] = parameter.data.flatten()
            parameter.data = self.values[start:stop].view_as(parameter)
            parameter.grad = self.gradients[start:stop].view_as(parameter)
            low, high = max(start, own.start), min(stop, own.stop)
            if low < high:
                self.pieces.append(
                    self._piece(place, low - own.start, high - own.start, low - start, mesh, axes)
                )
            start = stop

    def _piece(
        self, place: ParameterShare, low: int, high: int, at: int, mesh: Mesh, axes: tuple[str, ...]
    ) -> Piece:
        parameter = nn.Parameter(self.own_values[low:high])
        parameter.grad = self.own_gradient[low:high]
        flat = at, at + high - low
        parameter.trueup_piece = piece_facts(place, flat, axes)  # type: ignore[attr-defined]
        return Piece(place=place, parameter=parameter, copies=place.copies(mesh, besides=axes), flat=flat)


class ZeroOne:
    """ZeRO-1: each process gets and updates a part of the reduced gradients; parameters are gathered."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], places: Mapping[str, ParameterShare], mesh: Mesh
    ) -> None:
        self._parameters, self._mesh = parameters, mesh
        self._places = [places[fqn] for fqn in parameters]
        by_axes = _by_axes(self._places, mesh, DATA_AXES)
        self._buckets = [_Bucket(some, parameters, mesh, axes) for axes, some in by_axes.items() if axes]
        whole = {place.fqn: parameters[place.fqn] for place in by_axes.get((), [])}
        self._whole = Copies(whole, places, mesh)
        self.pieces = [piece for bucket in self._buckets for piece in bucket.pieces] + self._whole.pieces

    def reduce(self) -> None:
        """Sum over tp where that is due, then reduce-scatter over the data-parallel ranks."""
        for axes, places in _by_axes(self._places, self._mesh, ("tp",)).items():
            if axes:
                sum_over((gradient_of(self._parameters[one.fqn]) for one in places), self._mesh.group(*axes))
        for bucket in self._buckets:
            reduce_scatter(bucket.own_gradient, bucket.gradients, group=bucket.group)

    def publish(self) -> None:
        """Gather the parameters that each process has updated."""
        for bucket in self._buckets:
            all_gather(bucket.values, bucket.own_values.clone(), group=bucket.group)

    def zero_grad(self) -> None:
        """Gradients stay where they are: they are parts of one tensor."""
        for bucket in self._buckets:
            bucket.gradients.zero_()
        self._whole.zero_grad()
