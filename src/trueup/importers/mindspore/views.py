"""The values of views: of a tensor that shows another's memory, MindSpore dumps that memory under its own shape.

What ``SplitWithSizeView`` gives is a file with the shape of one part and the bytes of the whole. The graph tells
whose memory it is and how the view lies in it; where there is no graph such a file is not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.importers.mindspore.graph import GraphFlow, Node, Of, Operand
from trueup.importers.mindspore.names import FileName
from trueup.importers.mindspore.operators import RESHAPES

Array = NDArray[Any]
Step = Callable[[Array], Array]
UNKNOWN_VIEW = (
    "a view of another tensor: MindSpore dumped the memory of that one, and graphs/*.ir does not tell where in it "
    "the view lies"
)


@dataclass(frozen=True, slots=True)
class Memory:
    """A tensor's memory: the shape of what owns it, and the way from there to the tensor."""

    shape: tuple[int, ...]
    steps: tuple[Step, ...] = ()

    def view(self, values: Array) -> Array:
        """The tensor, of all values of the memory."""
        values = values.reshape(self.shape)
        for step in self.steps:
            values = step(values)
        return values


def view_of(
    values: Array, shape: tuple[int, ...], name: FileName, flow: GraphFlow | None, node: Node | None
) -> Array | None:
    """The tensor a file shows, from all ``values`` in it; None where that is not known.

    A reshape that does nothing shows the ``shape`` of what went into it: the graph's shape is taken.
    """
    if flow is not None and node is not None:
        for memory in _memories(flow, node, name.side == "output", name.slot):
            if math.prod(memory.shape) == values.size:
                found = memory.view(values)
                if found.size == math.prod(shape):
                    return found
    if values.size != math.prod(shape) or (node is None and name.op_type in MOVING_VIEWS):
        return None
    return values.reshape(shape)


def _memories(flow: GraphFlow, node: Node, is_output: bool, slot: int) -> Iterator[Memory]:
    """What a file may show, likeliest first."""
    if is_output:
        yield from _of_output(flow, node, slot)
    elif slot < len(node.operands):
        yield from _of_operand(flow, node.operands[slot])


def _of_operand(flow: GraphFlow, operand: Operand) -> Iterator[Memory]:
    origin = flow.origin(operand)
    node = flow.nodes.get(origin.node) if isinstance(origin, Of) else None
    if node is not None and isinstance(origin, Of):
        yield from _of_output(flow, node, origin.output)


def _of_output(flow: GraphFlow, node: Node, output: int) -> Iterator[Memory]:
    """Of a view, what it is of and how it lies there; of a reshape, what went into it or its own."""
    if output >= len(node.shapes) or not node.operands:
        return
    step = _reshape(node.shapes[output]) if node.op in RESHAPES else _step(node, output)
    if step is not None:
        for memory in _of_operand(flow, node.operands[0]):
            yield Memory(memory.shape, (*memory.steps, step))
    if step is None or node.op in RESHAPES:
        yield Memory(node.shapes[output])


def _reshape(shape: tuple[int, ...]) -> Step:
    return lambda values: values.reshape(shape)


def _step(node: Node, output: int) -> Step | None:
    """How a view lies in what it is of; None where the operator is no view, or one whose place is not known."""
    given = node.operands[1:]
    make = _VIEWS.get(node.op)
    try:
        return None if make is None else make(output, *given[: _ARGUMENTS[node.op]])
    except (TypeError, IndexError):
        return None


def _part(output: int, sizes: Any, dim: int) -> Step:
    if isinstance(sizes, int):
        at = output * sizes
        return lambda values: values.take(range(at, min(at + sizes, values.shape[dim])), dim)
    ends = np.cumsum(sizes)
    return lambda values: values.take(range(ends[output] - sizes[output], ends[output]), dim)


def _chunk(output: int, chunks: int, dim: int) -> Step:
    return lambda values: _part(output, -(-values.shape[dim] // chunks), dim)(values)


_VIEWS: dict[str, Callable[..., Step]] = {
    "SplitWithSizeView": _part,
    "SplitTensorView": _part,
    "ChunkView": _chunk,
    "TransposeExtView": lambda _, one, two: lambda values: values.swapaxes(one, two),
    "TransposeView": lambda _, order: lambda values: values.transpose(order),
    "BroadcastToView": lambda _, shape: lambda values: np.broadcast_to(values, _filled(shape, values.shape)),
    "ExpandDimsView": lambda _, dim: lambda values: np.expand_dims(values, dim),
    "SelectExtView": lambda _, dim, index: lambda values: values.take(index, dim),
    "SliceExtView": lambda _, dim, start, end, step: (
        lambda values: values.take(range(*slice(start, end, step).indices(values.shape[dim])), dim)
    ),
    "NarrowView": lambda _, dim, start, length: lambda values: values.take(range(start, start + length), dim),
    "UnstackExtView": lambda output, dim: lambda values: values.take(output, dim),
}
_ARGUMENTS = {
    "SplitWithSizeView": 2,
    "SplitTensorView": 2,
    "ChunkView": 2,
    "TransposeExtView": 2,
    "TransposeView": 1,
    "BroadcastToView": 1,
    "ExpandDimsView": 1,
    "SelectExtView": 2,
    "SliceExtView": 4,
    "NarrowView": 3,
    "UnstackExtView": 1,
}


MOVING_VIEWS = frozenset(_VIEWS) - {"ExpandDimsView"}
"""their files hold the right numbers of elements at most, never the right order"""


def _filled(shape: tuple[int, ...], own: tuple[int, ...]) -> tuple[int, ...]:
    """A broadcast's shape; -1 keeps the size."""
    missing = len(shape) - len(own)
    return tuple(own[k - missing] if size == -1 else size for k, size in enumerate(shape))
