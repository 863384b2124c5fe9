"""The shapes a plan gives, without reading a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from trueup.errors import ConfigError
from trueup.weights.plan import MovingStep, Permute, PlannedWeight, Reshape

Shape = tuple[int, ...]


def moved_shape(shape: Shape, steps: Sequence[MovingStep]) -> Shape:
    """Shape of ``plan.moved`` of values of ``shape``.

    Raises:
        ConfigError: a step does not fit the shape it meets.

    Example:
        >>> moved_shape((2, 6), [Reshape(shape=(2, 3, 2)), Permute(dims=(1, 0, 2))])
        (3, 2, 2)
    """
    for step in steps:
        shape = _one_shape(shape, step)
    return shape


def _one_shape(shape: Shape, step: MovingStep) -> Shape:
    if isinstance(step, Reshape):
        if min(step.shape, default=0) < 0 or prod(step.shape) != prod(shape):
            raise ConfigError(f"cannot reshape {shape} to {step.shape}: not the same number of values")
        return step.shape
    if isinstance(step, Permute):
        if sorted(step.dims) != list(range(len(shape))):
            raise ConfigError(f"cannot permute the {len(shape)} dimensions of {shape} by {step.dims}")
        return tuple(shape[dim] for dim in step.dims)
    if not (0 <= step.dim < len(shape) and 0 <= step.start < step.stop <= shape[step.dim]):
        raise ConfigError(f"no {step.start}:{step.stop} along dimension {step.dim} of {shape}")
    return (*shape[: step.dim], step.stop - step.start, *shape[step.dim + 1 :])


def made_shape(entry: PlannedWeight, shape_of: Callable[[str], Shape]) -> Shape:
    """Shape of ``plan.made`` of one entry; ``shape_of`` gives that of a source weight.

    Raises:
        ConfigError: steps or pieces do not fit each other; the entry is named.
    """
    try:
        shapes = [moved_shape(shape_of(piece.source), piece.steps) for piece in entry.pieces]
        whole = moved_shape(joined_shape(shapes, entry), entry.steps)
    except ConfigError as error:
        raise ConfigError(f"{entry.target}: {error}") from error
    if not entry.padding:
        return whole
    if not whole or entry.padding < 0:
        raise ConfigError(f"{entry.target}: no {entry.padding} rows can be added to shape {whole}")
    return (whole[0] + entry.padding, *whole[1:])


def joined_shape(shapes: Sequence[Shape], entry: PlannedWeight) -> Shape:
    """Shape of the pieces of an entry put together, before its own steps.

    Raises:
        ConfigError: they do not fit each other, or how they are joined is not said.
    """
    if not shapes:
        raise ConfigError("no pieces")
    first, dim = shapes[0], entry.dim
    if entry.join is None:
        if len(shapes) != 1:
            raise ConfigError(f"{len(shapes)} pieces and no word of how they are joined")
        return first
    if entry.join == "stack":
        if any(shape != first for shape in shapes) or not 0 <= dim <= len(first):
            raise ConfigError(f"cannot stack {_listed(shapes)} along dimension {dim}")
        return (*first[:dim], len(shapes), *first[dim:])
    if entry.join != "concat":
        raise ConfigError(f"join {entry.join!r}: expected concat or stack")
    alike = {(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}
    if not 0 <= dim < min(map(len, shapes)) or len(alike) > 1:
        raise ConfigError(f"cannot concatenate {_listed(shapes)} along dimension {dim}")
    return (*first[:dim], sum(shape[dim] for shape in shapes), *first[dim + 1 :])


def _listed(shapes: Sequence[Shape]) -> str:
    return ", ".join(map(str, dict.fromkeys(shapes)))
