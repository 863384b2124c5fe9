"""A conversion plan: how each weight of one model is made of the weights of another.

A weight is made of one or more pieces. A piece is a source weight taken through a few elementary steps that
only move values (reshape, permute, slice); the pieces are joined, and the whole may take further steps. That
is enough for transposes, fused and split projections, stacked experts, grouped query layouts and the two
rotary layouts, it never rounds, and it can be turned round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from trueup.errors import ConfigError
from trueup.types.arrays import Array

Values = Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshape:
    """The same values in row-major order under another shape."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Permute:
    """Dimensions in another order, as ``numpy.transpose`` takes them."""

    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """``start`` to ``stop`` along one dimension."""

    dim: int
    start: int
    stop: int


MovingStep = Reshape | Permute | Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePiece:
    """A source weight, taken through ``steps``."""

    source: str
    steps: tuple[MovingStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWeight:
    """How one target weight is made.

    ``join`` is ``"concat"`` or ``"stack"`` along ``dim`` where there are several pieces. ``padding`` zero
    rows are added along dimension 0 at the end (a vocabulary made a multiple of something).
    """

    target: str
    pieces: tuple[SourcePiece, ...]
    join: str | None = None
    dim: int = 0
    steps: tuple[MovingStep, ...] = ()
    padding: int = 0
    how: str = "name"
    """what the pairing rests on: ``values`` (equal content), ``name``, ``map`` (a person said so)"""
    confidence: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionPlan:
    """All entries, and the weights of either side that no entry names."""

    entries: tuple[PlannedWeight, ...]
    only_target: tuple[str, ...] = ()
    only_source: tuple[str, ...] = ()
    other: ConversionPlan | None = None
    """of a proposal: the plan with fused weights in their other layout, where names leave it open; no file
    holds it"""

    def entry_of(self, target: str) -> PlannedWeight | None:
        """The entry that makes ``target``."""
        return next((entry for entry in self.entries if entry.target == target), None)


def moved(values: Values, steps: Sequence[MovingStep]) -> Values:
    """``values`` taken through ``steps``: a view where numpy can give one.

    Raises:
        ConfigError: a step does not fit the shape it meets.

    Example:
        >>> moved(np.arange(6).reshape(2, 3), [Permute(dims=(1, 0))]).shape
        (3, 2)
    """
    for step in steps:
        values = _one_step(values, step)
    return values


def _one_step(values: Values, step: MovingStep) -> Values:
    if isinstance(step, Reshape):
        if prod(step.shape) != values.size:
            raise ConfigError(f"cannot reshape {values.shape} to {step.shape}: not the same number of values")
        return values.reshape(step.shape)
    if isinstance(step, Permute):
        if sorted(step.dims) != list(range(values.ndim)):
            raise ConfigError(f"cannot permute the {values.ndim} dimensions of {values.shape} by {step.dims}")
        return np.transpose(values, step.dims)
    if not (0 <= step.dim < values.ndim and 0 <= step.start < step.stop <= values.shape[step.dim]):
        raise ConfigError(f"no {step.start}:{step.stop} along dimension {step.dim} of {values.shape}")
    index: tuple[slice, ...] = (slice(None),) * step.dim + (slice(step.start, step.stop),)
    return np.asarray(values[index])


def made(entry: PlannedWeight, read: Callable[[str], Values]) -> Values:
    """The target weight of one entry; ``read`` gives a source weight by name. Bits are only moved.

    Raises:
        ConfigError: steps or pieces do not fit each other.
    """
    pieces = [moved(read(piece.source), piece.steps) for piece in entry.pieces]
    try:
        whole = _joined(pieces, entry)
    except ValueError as error:
        shapes = ", ".join(f"{p.source} {v.shape}" for p, v in zip(entry.pieces, pieces, strict=True))
        raise ConfigError(f"{entry.target}: its pieces do not fit each other ({shapes}): {error}") from error
    whole = moved(whole, entry.steps)
    if entry.padding:
        whole = np.concatenate([whole, np.zeros((entry.padding, *whole.shape[1:]), whole.dtype)])
    return whole


def _joined(pieces: list[Values], entry: PlannedWeight) -> Values:
    if entry.join == "concat":
        return np.concatenate(pieces, axis=entry.dim)
    if entry.join == "stack":
        return np.stack(pieces, axis=entry.dim)
    if len(pieces) != 1:
        raise ConfigError(f"{entry.target}: {len(pieces)} pieces and no word of how they are joined")
    return pieces[0]
