"""A plan turned round: how the source is made again of what was made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trueup.errors import ConfigError
from trueup.weights.plan import (
    ConversionPlan,
    MovingStep,
    Permute,
    PlannedWeight,
    Reshape,
    Slice,
    SourcePiece,
)
from trueup.weights.shapes import Shape, joined_shape, made_shape, moved_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one piece took of a source weight: all of it after ``before``, or ``cut`` of that.

    ``back`` gives that part from the target weight ``target``.
    """

    target: str
    back: tuple[MovingStep, ...]
    before: tuple[MovingStep, ...]
    cut: Slice | None
    how: str
    confidence: float


def inverse(plan: ConversionPlan, shapes: Mapping[str, Shape]) -> ConversionPlan:
    """The plan that makes the sources of ``plan`` of its targets, bit for bit.

    Padding is cut off again. A source that several entries take whole (tied weights) is taken from the first.

    Args:
        plan: what is to be turned round.
        shapes: of the source weights, by name.

    Raises:
        ConfigError: some part of a source went nowhere, or a step cannot be turned round; says which.

    Example:
        >>> there = ConversionPlan(entries=(Entry(target="b", pieces=(Piece(source="a"),)),))
        >>> inverse(there, {"a": (2, 3)}).entries[0].target
        'a'
    """
    parts: dict[str, list[_Part]] = {}
    for entry in plan.entries:
        for piece, part in zip(entry.pieces, _parts(entry, shapes), strict=True):
            parts.setdefault(piece.source, []).append(part)
    entries = tuple(_whole(name, found, shapes[name]) for name, found in parts.items())
    return ConversionPlan(entries=entries, only_target=plan.only_source, only_source=plan.only_target)


def _parts(entry: PlannedWeight, shapes: Mapping[str, Shape]) -> list[_Part]:
    """For each piece of ``entry``, how its part comes back out of the target."""
    for piece in entry.pieces:
        if piece.source not in shapes:
            raise ConfigError(f"{entry.target}: the shape of {piece.source} is not known")
    made_shape(entry, shapes.__getitem__)
    met = [moved_shape(shapes[piece.source], piece.steps) for piece in entry.pieces]
    joined = joined_shape(met, entry)
    whole = _unpadded(entry, joined) + _undone(entry.target, joined, entry.steps)
    parts, at = [], 0
    for piece, shape in zip(entry.pieces, met, strict=True):
        out, at = _taken_out(entry, shape, at, len(met))
        before, cut, after = _split_at_slice(entry, piece, shapes[piece.source])
        start = moved_shape(shapes[piece.source], (*before, *([cut] if cut else [])))
        parts.append(
            _Part(
                target=entry.target,
                back=_tidy((*whole, *out, *_undone(entry.target, start, after))),
                before=before,
                cut=cut,
                how=entry.how,
                confidence=entry.confidence,
            )
        )
    return parts


def _unpadded(entry: PlannedWeight, joined: Shape) -> tuple[MovingStep, ...]:
    if not entry.padding:
        return ()
    return (Slice(dim=0, start=0, stop=moved_shape(joined, entry.steps)[0]),)


def _taken_out(entry: PlannedWeight, shape: Shape, at: int, num: int) -> tuple[tuple[MovingStep, ...], int]:
    """Steps that take one piece out of the joined whole, and where the next begins."""
    length = 1 if entry.join == "stack" else shape[entry.dim] if entry.join else 0
    cut = () if num == 1 else (Slice(dim=entry.dim, start=at, stop=at + length),)
    return (*cut, *([Reshape(shape=shape)] if entry.join == "stack" else [])), at + length


def _split_at_slice(
    entry: PlannedWeight, piece: SourcePiece, shape: Shape
) -> tuple[tuple[MovingStep, ...], Slice | None, tuple[MovingStep, ...]]:
    """Steps before the one slice of a piece, that slice, and the steps behind it."""
    at = [number for number, step in enumerate(piece.steps) if isinstance(step, Slice)]
    if not at:
        return piece.steps, None, ()
    if len(at) > 1:
        raise ConfigError(f"{entry.target}: two slices of {piece.source} cannot be turned round; write one")
    return piece.steps[: at[0]], piece.steps[at[0]], piece.steps[at[0] + 1 :]  # type: ignore[return-value]


def _undone(target: str, shape: Shape, steps: Sequence[MovingStep]) -> tuple[MovingStep, ...]:
    """Steps that lead back to ``shape``."""
    back: list[MovingStep] = []
    for step in steps:
        if isinstance(step, Slice) and (step.start, step.stop) != (0, shape[step.dim]):
            raise ConfigError(f"{target}: a part of it is cut away, which cannot be turned round")
        if isinstance(step, Reshape):
            back.append(Reshape(shape=shape))
        elif isinstance(step, Permute):
            back.append(Permute(dims=tuple(step.dims.index(dim) for dim in range(len(step.dims)))))
        shape = moved_shape(shape, [step])
    return tuple(reversed(back))


def _whole(name: str, parts: list[_Part], shape: Shape) -> PlannedWeight:
    """The entry that makes source ``name`` of all its parts."""
    whole = next((part for part in parts if part.cut is None), None)
    if whole is not None:
        steps = (*whole.back, *_undone(name, shape, whole.before))
        pieces: tuple[SourcePiece, ...] = (SourcePiece(source=whole.target, steps=_tidy(steps)),)
        return PlannedWeight(target=name, pieces=pieces, how=whole.how, confidence=whole.confidence)
    ordered = sorted(parts, key=lambda part: part.cut.start if part.cut else 0)
    first = ordered[0]
    if any(part.before != first.before or part.cut.dim != first.cut.dim for part in ordered):  # type: ignore[union-attr]
        raise ConfigError(f"{name}: its parts are cut in different ways, which cannot be turned round")
    dim = _check_covered(name, ordered, moved_shape(shape, first.before))
    return PlannedWeight(
        target=name,
        pieces=tuple(SourcePiece(source=part.target, steps=part.back) for part in ordered),
        join="concat" if len(ordered) > 1 else None,
        dim=dim if len(ordered) > 1 else 0,
        steps=_undone(name, shape, first.before),
        how=first.how,
        confidence=min(part.confidence for part in ordered),
    )


def _check_covered(name: str, ordered: Sequence[_Part], shape: Shape) -> int:
    """The dimension along which the parts lie end to end."""
    at, dim = 0, 0
    for part in ordered:
        assert part.cut is not None
        dim = part.cut.dim
        if part.cut.start != at:
            raise ConfigError(
                f"{name}: {at}:{part.cut.start} along dimension {dim} goes nowhere"
                if part.cut.start > at
                else f"{name}: {part.cut.start}:{at} along dimension {dim} is taken twice"
            )
        at = part.cut.stop
    if at != shape[dim]:
        raise ConfigError(f"{name}: {at}:{shape[dim]} along dimension {dim} goes nowhere")
    return dim


def _tidy(steps: Sequence[MovingStep]) -> tuple[MovingStep, ...]:
    """The same steps with reshapes in a row made one."""
    out: list[MovingStep] = []
    for step in steps:
        if out and isinstance(step, Reshape) and isinstance(out[-1], Reshape):
            out.pop()
        out.append(step)
    return tuple(out)
