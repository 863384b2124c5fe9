"""What the optimizer of one process updates, and how gradients get there: whole copies, or ZeRO-1.

MindSpore gives gradients back rather than keeping them on parameters: an engine holds them. They are always
summed, never averaged: the loss carries the weight of its microbatch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import mindspore
from mindspore import Parameter, Tensor, mint, ops

from trueup_gpt.mindspore.parallel.collectives import all_gather, all_reduce
from trueup_gpt.mindspore.parallel.mesh import Group, Mesh
from trueup_gpt.parallel.mesh import DATA_AXES
from trueup_gpt.parallel.places import ParameterShare
from trueup_gpt.parallel.traced import piece_facts

Gradients = dict[str, Tensor]
"""of this process's parameters, by name"""


@dataclass(slots=True, kw_only=True)
class Piece:
    """A parameter, or the part of one that this process updates."""

    place: ParameterShare
    """of the parameter"""
    parameter: Parameter
    """the optimizer's: float32 where the model computes with half precision and master weights are kept"""
    copies: tuple[str, ...]
    """axes along which other processes have the same piece"""
    flat: tuple[int, int] | None = None
    """which elements of the flattened local parameter, where it is a part"""
    gradient: Tensor | None = field(default=None, repr=False)

    @property
    def fqn(self) -> str:
        """Of the parameter."""
        return self.place.fqn


class Engine(Protocol):
    """One way to hold parameters and reduce gradients."""

    pieces: list[Piece]

    def reduce(self, gradients: Gradients) -> None:
        """Sum gradients over the processes that have the same parameter, and give each piece its own."""

    def publish(self) -> None:
        """After the optimizer's step, give every process what it computes with."""

    def adopt(self) -> None:
        """After weights were loaded, take them as the optimizer's."""


def sum_over(gradients: Gradients, names: Iterable[str], group: Group) -> None:
    """Sum those over a group, as one flat tensor for each dtype."""
    by_dtype: dict[mindspore.Type, list[str]] = {}
    for name in names:
        by_dtype.setdefault(gradients[name].dtype, []).append(name)
    for some in by_dtype.values():
        whole = all_reduce(flattened([gradients[name] for name in some]), group)
        for name, part in zip(some, unflattened(whole, [gradients[one].shape for one in some]), strict=True):
            gradients[name] = part


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """End to end."""
    return mint.cat([one.reshape(-1) for one in tensors]) if len(tensors) > 1 else tensors[0].reshape(-1)


def unflattened(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """The tensors again."""
    found, start = [], 0
    for shape in shapes:
        size = math.prod(shape)
        found.append(flat[start : start + size].reshape(shape))
        start += size
    return found


def reduce_over(
    gradients: Gradients, places: Iterable[ParameterShare], mesh: Mesh, among: Sequence[str]
) -> None:
    """All-reduce, one flat tensor for each set of axes."""
    by_axes: dict[tuple[str, ...], list[str]] = {}
    for place in places:
        by_axes.setdefault(place.partial(mesh, among), []).append(place.fqn)
    for axes, names in by_axes.items():
        if axes:
            sum_over(gradients, names, mesh.group(*axes))


def _own(values: Tensor, name: str, *, masters: bool) -> Parameter:
    """The optimizer's copy."""
    return Parameter(values.astype(mindspore.float32) if masters else values.copy(), name=name)


class Copies:
    """Every process of the data-parallel group has the whole of its parameters, and updates all."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        places: Mapping[str, ParameterShare],
        mesh: Mesh,
        *,
        masters: bool,
    ) -> None:
        self._parameters, self._mesh, self._masters = parameters, mesh, masters
        self.pieces = []
        for fqn, parameter in parameters.items():
            place = places[fqn]
            given = _own(parameter, f"{fqn}.master", masters=True) if masters else parameter
            self.pieces.append(Piece(place=place, parameter=given, copies=place.copies(mesh)))

    def reduce(self, gradients: Gradients) -> None:
        """See ``Engine``."""
        places = [piece.place for piece in self.pieces]
        for among in (("tp",), DATA_AXES):
            reduce_over(gradients, places, self._mesh, among)
        for piece in self.pieces:
            gradient = gradients[piece.fqn]
            piece.gradient = gradient.astype(piece.parameter.dtype) if self._masters else gradient

    def publish(self) -> None:
        """Round what the model computes with from its copy, where there is one."""
        for piece in self.pieces if self._masters else ():
            computed = self._parameters[piece.fqn]
            ops.assign(computed, piece.parameter.astype(computed.dtype))

    def adopt(self) -> None:
        """See ``Engine``."""
        for piece in self.pieces if self._masters else ():
            ops.assign(piece.parameter, self._parameters[piece.fqn].astype(piece.parameter.dtype))


class _Bucket:
    """Parameters with the same data-parallel axes, end to end; this process updates a part of them."""

    def __init__(
        self,
        names: list[str],
        parameters: Mapping[str, Parameter],
        places: Mapping[str, ParameterShare],
        mesh: Mesh,
        axes: tuple[str, ...],
        *,
        masters: bool,
    ) -> None:
        self._names, self._parameters, self._masters = names, parameters, masters
        self._group = mesh.group(*axes)
        self._total = sum(parameters[name].size for name in names)
        self._length = -(-self._total // self._group.size)
        self.pieces: list[Piece] = []
        own = self._group.rank * self._length
        start = 0
        for name in names:
            size = parameters[name].size
            low, high = max(start, own), min(start + size, own + self._length)
            if low < high:
                flat = low - start, high - start
                values = parameters[name].reshape(-1)[flat[0] : flat[1]]
                given = _own(values, f"{name}.part", masters=masters)
                given.trueup_piece = piece_facts(places[name], flat, axes)
                copies = places[name].copies(mesh, besides=axes)
                self.pieces.append(Piece(place=places[name], parameter=given, copies=copies, flat=flat))
            start += size

    def reduce(self, gradients: Gradients) -> None:
        """Sum, and keep this process's part."""
        sum_over(gradients, self._names, self._group)
        for piece in self.pieces:
            assert piece.flat is not None
            own = gradients[piece.fqn].reshape(-1)[piece.flat[0] : piece.flat[1]]
            piece.gradient = own.astype(piece.parameter.dtype)

    def publish(self) -> None:
        """Gather what each process has updated."""
        dtype = self._parameters[self._names[0]].dtype
        held = [piece.parameter.astype(dtype) for piece in self.pieces]
        missing = self._length - sum(one.size for one in held)
        if missing:
            held.append(ops.zeros((missing,), dtype))
        whole = mint.cat(all_gather(flattened(held), self._group))
        shapes = [self._parameters[name].shape for name in self._names]
        for name, values in zip(self._names, unflattened(whole, shapes), strict=True):
            ops.assign(self._parameters[name], values)

    def adopt(self) -> None:
        """See ``Engine``."""
        for piece in self.pieces:
            assert piece.flat is not None
            values = self._parameters[piece.fqn].reshape(-1)[piece.flat[0] : piece.flat[1]]
            ops.assign(piece.parameter, values.astype(piece.parameter.dtype))


class ZeroOne:
    """ZeRO-1: each process gets and updates a part of the reduced gradients; parameters are gathered."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        places: Mapping[str, ParameterShare],
        mesh: Mesh,
        *,
        masters: bool,
    ) -> None:
        self._places, self._mesh = [places[fqn] for fqn in parameters], mesh
        by_axes: dict[tuple[str, ...], list[str]] = {}
        for place in self._places:
            by_axes.setdefault(place.partial(mesh, DATA_AXES), []).append(place.fqn)
        self._buckets = [
            _Bucket(names, parameters, places, mesh, axes, masters=masters)
            for axes, names in by_axes.items()
            if axes
        ]
        whole = {name: parameters[name] for name in by_axes.get((), [])}
        self._whole = Copies(whole, places, mesh, masters=masters)
        self.pieces = [piece for bucket in self._buckets for piece in bucket.pieces] + self._whole.pieces

    def reduce(self, gradients: Gradients) -> None:
        """See ``Engine``."""
        bucketed = [place for place in self._places if place.partial(self._mesh, DATA_AXES)]
        reduce_over(gradients, bucketed, self._mesh, ("tp",))
        self._whole.reduce(gradients)
        for bucket in self._buckets:
            bucket.reduce(gradients)

    def publish(self) -> None:
        """See ``Engine``."""
        self._whole.publish()
        for bucket in self._buckets:
            bucket.publish()

    def adopt(self) -> None:
        """See ``Engine``."""
        self._whole.adopt()
        for bucket in self._buckets:
            bucket.adopt()
