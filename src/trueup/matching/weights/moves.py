"""One weight made of others, found from the values: which steps, which pieces, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations

import numpy as np

from trueup.errors import ConfigError
from trueup.matching.weights.rows import located
from trueup.types.arrays import Array
from trueup.weights.plan import MovingStep, Permute, PlannedWeight, Reshape, SourcePiece, made

Values = Array
MAX_DIMS = 5


def entry_from_values(name: str, target: Values, sources: Mapping[str, Values]) -> PlannedWeight | None:
    """How ``target`` is made of the sources, checked element by element; None where no few steps make it."""
    for entry in _candidates(name, target, sources):
        try:
            whole = made(entry, sources.__getitem__)
        except ConfigError:
            continue
        if whole.shape == target.shape and np.array_equal(whole, target):
            return entry
    return None


def _candidates(name: str, target: Values, sources: Mapping[str, Values]) -> Iterator[PlannedWeight]:
    if len(sources) == 1:
        (source, values), *_ = sources.items()
        for steps in _dims_moved(values, target):
            yield _entry(name, [SourcePiece(source=source, steps=steps)])
    stacked = _stacked(name, target, sources)
    if stacked is not None:
        yield stacked
    for turned in (False, True):
        for flipped in (False, True):
            found = _by_rows(name, target, sources, turned=turned, flipped=flipped)
            if found is not None:
                yield found


def _entry(
    name: str,
    pieces: list[SourcePiece],
    *,
    steps: tuple[MovingStep, ...] = (),
    padding: int = 0,
    join: str = "concat",
) -> PlannedWeight:
    join_of = join if len(pieces) > 1 else None
    return PlannedWeight(
        target=name,
        pieces=tuple(pieces),
        join=join_of,
        steps=steps,
        padding=padding,
        how="values",
        confidence=1.0,
    )


def _dims_moved(source: Values, target: Values) -> list[tuple[MovingStep, ...]]:
    """Equal, dimensions in another order, another shape of the same."""
    found: list[tuple[MovingStep, ...]] = []
    if source.shape == target.shape:
        found.append(())
    if source.ndim == target.ndim <= MAX_DIMS:
        orders = [o for o in permutations(range(source.ndim)) if o != tuple(range(source.ndim))]
        fitting = [o for o in orders if tuple(source.shape[d] for d in o) == target.shape]
        found += [(Permute(dims=o),) for o in fitting]
    if source.size == target.size and source.shape != target.shape:
        found.append((Reshape(shape=target.shape),))
        if source.ndim == 2:
            found.append((Permute(dims=(1, 0)), Reshape(shape=target.shape)))
    return found


def _stacked(name: str, target: Values, sources: Mapping[str, Values]) -> PlannedWeight | None:
    """One source a slice along the first dimension, each as it is or transposed."""
    if target.ndim < 2 or len(sources) < 2 or len(sources) != target.shape[0]:
        return None
    pieces = []
    for part in target:
        steps = None
        for source, values in sources.items():
            options = [s for s in _dims_moved(values, part) if not any(isinstance(x, Reshape) for x in s)]
            for option in options:
                dims = option[0].dims if option and isinstance(option[0], Permute) else None
                if np.array_equal(values if dims is None else values.transpose(dims), part):
                    steps = SourcePiece(source=source, steps=option)
        if steps is None:
            return None
        pieces.append(steps)
    return _entry(name, pieces, join="stack")


def _by_rows(
    name: str, target: Values, sources: Mapping[str, Values], *, turned: bool, flipped: bool
) -> PlannedWeight | None:
    """By rows of matrices: the target's transposed with ``turned``, the sources' with ``flipped``."""
    matrix, back = _as_matrix(target, turned=turned)
    names, matrices, before = list(sources), [], []
    for one in names:
        other, _ = _as_matrix(sources[one], turned=flipped)
        if other.shape[1] != matrix.shape[1]:
            return None
        matrices.append(other)
        before.append(_to_matrix(sources[one], turned=flipped))
    found = located(matrix, matrices)
    if found is None:
        return None
    chunks, padding = found
    if padding and back and target.ndim > 1:
        return None
    pieces = [SourcePiece(source=names[c.source], steps=(*before[c.source], *c.steps)) for c in chunks]
    if target.ndim == 1:
        back = (Reshape(shape=(target.shape[0] - padding,)),)
    return _entry(name, pieces, steps=back, padding=padding)


def _as_matrix(values: Values, *, turned: bool) -> tuple[Values, tuple[MovingStep, ...]]:
    """Values as rows, and the steps from there back."""
    if values.ndim == 1:
        return values.reshape(-1, 1), (Reshape(shape=values.shape),)
    if turned:
        swapped = np.swapaxes(values, -1, -2)
        dims = (*range(values.ndim - 2), values.ndim - 1, values.ndim - 2)
        reshape = (Reshape(shape=swapped.shape),) if values.ndim > 2 else ()
        return swapped.reshape(-1, swapped.shape[-1]), (*reshape, Permute(dims=dims))
    back = (Reshape(shape=values.shape),) if values.ndim > 2 else ()
    return values.reshape(-1, values.shape[-1]), back


def _to_matrix(values: Values, *, turned: bool) -> tuple[MovingStep, ...]:
    if values.ndim == 1:
        return (Reshape(shape=(values.size, 1)),)
    steps: tuple[MovingStep, ...] = ()
    shape = values.shape
    if turned:
        steps = (Permute(dims=(*range(values.ndim - 2), values.ndim - 1, values.ndim - 2)),)
        shape = (*shape[:-2], shape[-1], shape[-2])
    if values.ndim > 2:
        steps += (Reshape(shape=(values.size // shape[-1], shape[-1])),)
    return steps
