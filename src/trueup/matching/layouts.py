"""What has to be undone before two records of two implementations can be compared element by element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from math import prod

import numpy as np

from trueup.types.arrays import Array
from trueup.weights.plan import MovingStep, Permute, PlannedWeight, Reshape, Slice, SourcePiece, moved

UNORDERED = "in another order, which only stored values would tell"

Values = Array
Shape = tuple[int, ...]
Steps = tuple[MovingStep, ...]
MAX_DIMS = 6
MAX_WAYS = 64
"""layouts tried for one pair of shapes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonForm:
    """Steps that bring both sides to one form.

    A side's parts are each taken through its steps and put one after the other along dimension 0; no part
    at all leaves the side as it is.
    """

    label: str
    """for a person: ``[s, b, h] against [b, s, h]``, ``transposed``, ``part of a fused weight``"""
    target: tuple[Steps, ...] = ()
    reference: tuple[Steps, ...] = ()
    whole: bool = True
    """both sides hold the same values and no others, so statistics of the two can be compared"""
    known: bool = True
    """the steps are known; else only statistics can be compared, even with values"""
    repeated: Shape = ()
    """the shape to which sides of size 1 are repeated, as operations repeat them; empty: neither is"""

    def of_target(self, values: Values) -> Values:
        """The target's values in the common form."""
        return self._repeated(_joined(values, self.target))

    def of_reference(self, values: Values) -> Values:
        """The reference's values in the common form."""
        return self._repeated(_joined(values, self.reference))

    def _repeated(self, values: Values) -> Values:
        return np.broadcast_to(values, self.repeated) if self.repeated else values


def _joined(values: Values, parts: tuple[Steps, ...]) -> Values:
    if not parts:
        return values
    pieces = [moved(values, steps) for steps in parts]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


# -- weights: from the conversion plan ------------------------------------------


def layout_of_entry(entry: PlannedWeight, shapes: Mapping[str, Shape]) -> CommonForm | None:
    """Of a weight made of one other; None where it is that weight as it stands."""
    return None if is_plain(entry) else next(iter(pieces_of_entry(entry, shapes).values()))


def is_plain(entry: PlannedWeight) -> bool:
    """Whether a weight is one other as it stands."""
    return len(entry.pieces) == 1 and not entry.pieces[0].steps and not entry.steps and not entry.padding


def pieces_of_entry(entry: PlannedWeight, shapes: Mapping[str, Shape]) -> dict[str, CommonForm]:
    """Source weight -> what makes its part of the target weight comparable with its part of itself."""
    forms = [_shape_after(shapes[piece.source], piece.steps) for piece in entry.pieces]
    stacked = entry.join == "stack"
    if stacked:
        joined: Shape = (len(forms), *forms[0])
    else:
        joined = (sum(form[0] for form in forms) if forms[0] else 1, *forms[0][1:])
    back = _undone(entry.steps, joined)
    start = (Slice(dim=0, start=0, stop=joined[0]),) if entry.padding else ()
    held: dict[str, tuple[list[Steps], list[Steps]]] = {}
    at = 0
    for piece, form in zip(entry.pieces, forms, strict=True):
        size = 1 if stacked else (form[0] if form else 1)
        cut: Steps = () if size == joined[0] else (Slice(dim=0, start=at, stop=at + size),)
        of_target, reference = held.setdefault(piece.source, ([], []))
        of_target.append((*start, *back, *cut, *((Reshape(shape=form),) if stacked else ())))
        reference.append(piece.steps)
        at += size
    covered = {source: _covers(source, entry.pieces, shapes) for source in held}
    return {
        source: CommonForm(
            label=_label(entry, source),
            target=tuple(of_target) if any(of_target) else (),
            reference=tuple(reference) if any(reference) else (),
            whole=len(held) == 1 and covered[source] and not entry.padding,
        )
        for source, (of_target, reference) in held.items()
    }


def _covers(source: str, pieces: Sequence[SourcePiece], shapes: Mapping[str, Shape]) -> bool:
    """Whether the pieces take the whole source weight."""
    taken = sum(prod(_shape_after(shapes[source], p.steps)) for p in pieces if p.source == source)
    return taken == prod(shapes[source])


def _shape_after(shape: Shape, steps: Sequence[MovingStep]) -> Shape:
    for step in steps:
        if isinstance(step, Reshape):
            shape = step.shape
        elif isinstance(step, Permute):
            shape = tuple(shape[d] for d in step.dims)
        else:
            shape = (*shape[: step.dim], step.stop - step.start, *shape[step.dim + 1 :])
    return shape


def _undone(steps: Sequence[MovingStep], shape: Shape) -> Steps:
    """Reshapes and permutations turned round; ``shape`` is that before them."""
    out: list[MovingStep] = []
    for step in steps:
        if isinstance(step, Reshape):
            out.append(Reshape(shape=shape))
        elif isinstance(step, Permute):
            out.append(Permute(dims=tuple(int(d) for d in np.argsort(step.dims))))
        shape = _shape_after(shape, [step])
    return tuple(reversed(out))


# In one piece: one branch a word of the label.
def _label(entry: PlannedWeight, source: str) -> str:
    parts = []
    sources = {piece.source for piece in entry.pieces}
    own = [piece for piece in entry.pieces if piece.source == source]
    if len(sources) > 1:
        parts.append(f"the part made of {source}")
    if any(isinstance(step, Slice) for piece in own for step in piece.steps):
        parts.append(f"rows of {source}")
    steps = [step for piece in own for step in piece.steps] + list(entry.steps)
    turned = [step.dims for step in steps if isinstance(step, Permute)]
    if any(is_rotary(piece.steps) for piece in own):
        parts.append("rotary pairs: halves against neighbours")
    elif any(dims[-2:] == (len(dims) - 1, len(dims) - 2) for dims in turned):
        parts.append("transposed")
    elif turned:
        parts.append("rows in another order")
    elif any(isinstance(step, Reshape) for step in steps):
        parts.append("reshaped")
    if entry.padding:
        parts.append(f"{entry.padding} rows of padding left out")
    return ", ".join(parts) or "as it is"


def is_rotary(steps: Sequence[MovingStep]) -> bool:
    """Whether rows of heads go from halves to neighbouring pairs, or back."""
    return _rotary_turn(steps) is not None


def _rotary_turn(steps: Sequence[MovingStep]) -> tuple[int, int] | None:
    moving = [step for step in steps if not isinstance(step, Slice)]
    if moving and isinstance(moving[0], Permute) and moving[0].dims == (1, 0):
        moving = moving[1:]
    if len(moving) < 2 or not isinstance(moving[0], Reshape) or not isinstance(moving[1], Permute):
        return None
    sizes = moving[0].shape[1:3]
    return (sizes[0], sizes[1]) if moving[1].dims[:3] == (0, 2, 1) and 2 in sizes else None


def rotary_turns(entries: Sequence[PlannedWeight]) -> list[tuple[int, int]]:
    """(rows, columns) of the head channels' transposition in each weight that has one: (2, 64) for halves to
    neighbours in heads of 128 channels."""
    found = [_rotary_turn(piece.steps) for entry in entries for piece in entry.pieces]
    return list(dict.fromkeys(turn for turn in found if turn is not None))


# -- activations: from their shapes ------------------------------------------


def ways(
    target: Shape, reference: Shape, others: Sequence[Shape] = (), finer: Sequence[Shape] = ()
) -> list[CommonForm]:
    """Layouts that bring one shape to the other by splitting, permuting and merging dimensions.

    ``others`` are shapes seen elsewhere: their dimensions tell how a merged one may be split. ``finer`` are
    tried besides, such as the reference's with its channels as pairs.
    """
    found: dict[object, CommonForm] = {}
    each = [_ways(target, reference, others), *(_ways(target, reference, [], dims) for dims in finer)]
    for layout in chain.from_iterable(each):
        found.setdefault((layout.target, layout.reference), layout)
        if len(found) >= MAX_WAYS:
            break
    return list(found.values())


def _ways(
    target: Shape, reference: Shape, others: Sequence[Shape], only: Shape | None = None
) -> Iterator[CommonForm]:
    """The first of the shapes that both can be split to gives the dimensions that move."""
    label = f"{list(target)} against {list(reference)}"
    if target == reference and only is None:
        yield CommonForm(label=label)
    ends = _long(target), _long(reference)
    for dims in (ends[1], ends[0], *map(_long, others)) if only is None else (_long(only),):
        orders = [_orders(shape, dims) for shape in ends]
        for order in orders[0]:
            for other in orders[1]:
                steps = _steps(target, order, reference, other, dims)
                yield CommonForm(label=label, target=(steps,) if steps else ())
        if orders[0] and orders[1]:
            return


def _long(shape: Shape) -> Shape:
    return tuple(d for d in shape if d != 1)


def _orders(shape: Shape, dims: Shape) -> list[tuple[int, ...]]:
    """Orders of ``dims``, by position, whose neighbours merge to ``shape``."""
    if len(dims) > MAX_DIMS or prod(shape) != prod(dims):
        return []
    return [o for o in permutations(range(len(dims))) if _merges(tuple(dims[d] for d in o), shape)]


def _merges(sizes: Shape, shape: Shape) -> bool:
    at, size = 0, 1
    for one in sizes:
        size *= one
        if at < len(shape) and size == shape[at]:
            at, size = at + 1, 1
    return at == len(shape) and size == 1


def _steps(
    target: Shape, order: tuple[int, ...], reference: Shape, other: tuple[int, ...], dims: Shape
) -> Steps:
    """Target split into ``dims`` in ``order``, brought to ``other``, merged to the reference's shape."""
    steps: list[MovingStep] = []
    fine, result = tuple(dims[d] for d in order), tuple(dims[d] for d in other)
    turn = tuple(order.index(d) for d in other)
    if turn != tuple(range(len(turn))):
        steps += [*([Reshape(shape=fine)] if fine != target else []), Permute(dims=turn)]
        target = result
    return (*steps, Reshape(shape=reference)) if target != reference else tuple(steps)
