"""The values of views: of a tensor that shows another's memory MindSpore dumps that memory, under its own
shape.

What ``SplitWithSizeView`` gives is a file with the shape of one part and the bytes of the whole. The graph
tells whose memory it is and how the view lies in it; where there is no graph such a file is not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from trueup.importers.mindspore.graph import GraphFlow, Of, Operand, OperatorNode
from trueup.importers.mindspore.names import FileName
from trueup.importers.mindspore.operators import RESHAPES
from trueup.types.arrays import Array

Step = Callable[[Array], Array]
UNKNOWN_VIEW = (
    "a view of another tensor: MindSpore dumped the memory of that one, and graphs/*.ir does not tell where "
    "in it the view lies"
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

    def is_plain(self) -> bool:
        """Whether the tensor is the memory from end to end: else a reshape copies it."""
        memory = np.empty(self.shape, np.uint8)
        found = self.view(memory)
        return found.size == memory.size and found.flags.c_contiguous


def view_of(
    values: Array, shape: tuple[int, ...], name: FileName, flow: GraphFlow | None, node: OperatorNode | None
) -> Array | None:
    """The tensor a file shows, from all ``values`` in it; None where that is not known.

    A reshape that does nothing shows the ``shape`` of what went into it: the graph's shape is taken.
    """
    if flow is not None and node is not None:
        for memory in _memories(flow, node, name.side == "output", name.slot):
            if math.prod(memory.shape) == values.size:
                try:
                    found = memory.view(values)
                except (ValueError, IndexError):  # the graph says something else than the file after all
                    continue
                if found.size == math.prod(shape):
                    return found
    if values.size != math.prod(shape) or (node is None and name.op_type in MOVING_VIEWS):
        return None
    return values.reshape(shape)


def _memories(flow: GraphFlow, node: OperatorNode, is_output: bool, slot: int) -> Iterator[Memory]:
    """What a file may show, likeliest first: a reshape's own file shows what went into it."""
    if not is_output:
        operand: Operand = node.operands[slot] if slot < len(node.operands) else None
    elif node.op in RESHAPES:
        operand = node.operands[0] if node.operands else None
    else:
        operand = Of(node.number, slot)
    found = _memory(flow, operand)
    if found is not None and is_output and node.op in RESHAPES and node.shapes:
        yield Memory(found.shape, (*found.steps, _reshape(node.shapes[0])))
    elif found is not None:
        yield found
    if not is_output:
        yield from _before_reshapes(flow, operand)


def _before_reshapes(flow: GraphFlow, operand: Operand) -> Iterator[Memory]:
    """An operand that a reshape gave may be shown as what went into that."""
    origin = flow.origin(operand)
    node = flow.nodes.get(origin.node) if isinstance(origin, Of) else None
    if node is not None and node.op in RESHAPES and node.operands and node.shapes:
        found = _memory(flow, node.operands[0])
        if found is not None:
            yield Memory(found.shape, (*found.steps, _reshape(node.shapes[0])))


def _memory(flow: GraphFlow, operand: Operand) -> Memory | None:
    """Where a tensor lies: in the memory of what it is a view of, or its own."""
    origin = flow.origin(operand)
    node = flow.nodes.get(origin.node) if isinstance(origin, Of) else None
    if node is None or not isinstance(origin, Of) or origin.output >= len(node.shapes):
        return None
    step = _reshape(node.shapes[0]) if node.op in RESHAPES else _step(node, origin.output)
    base = None if step is None else _memory(flow, node.operands[0])
    if base is None or step is None or (node.op in RESHAPES and not base.is_plain()):
        return Memory(node.shapes[origin.output])
    return Memory(base.shape, (*base.steps, step))


def _reshape(shape: tuple[int, ...]) -> Step:
    return lambda values: values.reshape(shape)


def _step(node: OperatorNode, output: int) -> Step | None:
    """How a view lies in what it is of; None where the operator is none, or one whose place is not known."""
    arguments, make = _VIEWS.get(node.op, (0, None))
    try:
        return None if make is None else make(output, *node.operands[1 : 1 + arguments])
    except (TypeError, IndexError):
        return None


def _cut(dim: int, start: int, stop: int, step: int = 1) -> Step:
    def cut(values: Array) -> Array:
        which: list[slice] = [slice(None)] * values.ndim
        which[dim] = slice(start, stop, step)
        return values[tuple(which)]

    return cut


def _part(output: int, sizes: int | tuple[int, ...], dim: int) -> Step:
    if isinstance(sizes, int):
        return _cut(dim, output * sizes, (output + 1) * sizes)
    start = sum(sizes[:output])
    return _cut(dim, start, start + sizes[output])


def _chunk(output: int, chunks: int, dim: int) -> Step:
    return lambda values: _part(output, -(-values.shape[dim] // chunks), dim)(values)


def _select(index: int, dim: int) -> Step:
    return lambda values: np.moveaxis(values, dim, 0)[index]


def _broadcast(shape: tuple[int, ...]) -> Step:
    """To ``shape``, where -1 keeps a size."""

    def broadcast(values: Array) -> Array:
        own = (1,) * (len(shape) - values.ndim) + values.shape
        sizes = [target if size == -1 else size for size, target in zip(shape, own, strict=True)]
        return np.broadcast_to(values, sizes)

    return broadcast


_VIEWS: dict[str, tuple[int, Callable[..., Step]]] = {
    "SplitWithSizeView": (2, _part),
    "SplitTensorView": (2, _part),
    "ChunkView": (2, _chunk),
    "TransposeExtView": (2, lambda _, one, two: lambda values: values.swapaxes(one, two)),
    "TransposeView": (1, lambda _, order: lambda values: values.transpose(order)),
    "BroadcastToView": (1, lambda _, shape: _broadcast(shape)),
    "ExpandDimsView": (1, lambda _, dim: lambda values: np.expand_dims(values, dim)),
    "SelectExtView": (2, lambda _, dim, index: _select(index, dim)),
    "SliceExtView": (4, lambda _, dim, start, end, step: _cut(dim, start, end, step)),
    "NarrowView": (3, lambda _, dim, start, length: _cut(dim, start, start + length)),
    "UnstackExtView": (1, _select),
}
"""how many arguments each takes after the tensor, and what it does: of the output's number and those"""
MOVING_VIEWS = frozenset(_VIEWS) - {"ExpandDimsView"}
"""their files hold the right numbers of elements at most, never the right order"""
