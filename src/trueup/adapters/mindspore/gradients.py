"""Gradients, observed without touching the graph: tensor hooks on outputs, node hooks on the consumers of
inputs.

MindSpore's backward nodes answer as torch's do, but each question gives a new object for the same node: nodes
are told apart by their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from mindspore import Tensor
from mindspore import dtype as ms_dtype

from trueup.adapters.base import GraphNode
from trueup.adapters.gradients import ApiNode, Arrival, Gradients, Sums, Use, interned, uses_of
from trueup.adapters.mindspore.engine import Engine


class BackwardNode(GraphNode, Protocol):
    """What is asked of MindSpore's nodes."""

    @property
    def next_functions(self) -> Sequence[tuple[BackwardNode, int]]: ...

    def name(self) -> str: ...

    def is_leaf(self) -> bool: ...

    def _unique_id(self) -> int: ...

    def _sequence_nr(self) -> int: ...


Edges = list[tuple[str, int, int, int]]
"""(slot, number of the node that made the input, its output number, its place in creation order)"""

Consumers = list[tuple[BackwardNode, list[tuple[int, str]]]]
"""nodes with (number of the gradient, slot) of each input they send one to"""

_NONE = ""
"""slot of an input that no gradient is for, though it may have a node: integers"""
_DIFFERENTIABLE = frozenset(
    (ms_dtype.float16, ms_dtype.bfloat16, ms_dtype.float32, ms_dtype.float64, ms_dtype.complex64)
) | {ms_dtype.complex128}
_COMPILED = "bprop_builder"
"""in the name of the node of a compiled graph"""
_LEAF = 2**63
"""leaves have larger places in creation order: they have none"""


def edge_of(where: str, tensor: Tensor) -> tuple[str, int, int, int]:
    """One of ``Edges``: of a tensor with a node."""
    node = tensor._grad_node
    where = where if tensor.dtype in _DIFFERENTIABLE else _NONE
    return where, node._unique_id(), tensor._output_index, node._sequence_nr()


def edges(tensors: list[tuple[str, Tensor]]) -> Edges:
    """Where the gradients of the inputs will go; taken before the call, because in-place calls change it."""
    return [edge_of(where, tensor) for where, tensor in tensors if tensor._grad_node is not None]


def at_outputs(engine: Engine, call: int, results: list[tuple[str, Tensor]]) -> None:
    """Record the total gradient arriving at each output of a module call."""
    if engine.forcing is not None:
        engine.forcing.at_outputs(call, results)
        return
    for where, tensor in results:
        if tensor._grad_node is not None and not tensor._grad_node.is_leaf():
            tensor.register_hook(Arrival(engine, call, where))


def at_inputs(engine: Engine, call: int, tracked: Edges, results: list[tuple[str, Tensor]]) -> None:
    """Record, at each input, the gradient this call sends to it."""
    consumers = consumers_of(tracked, results)
    if not consumers:
        return
    uses = uses_of(consumers)
    if engine.forcing is not None:
        if not any(_COMPILED in node.name() for node, _ in consumers):  # those are left free
            engine.forcing.at_inputs(call, uses, consumers)
        return
    sums = Sums(engine, call, uses)
    for node, slots in consumers:
        _hook(node, tracked, Use(sums, interned(slots)))


def at_api(engine: Engine, call: int, tracked: Edges, results: list[tuple[str, Tensor]]) -> None:
    """Both sides of an API call; when it made a single node, one hook serves both."""
    before = {number for _, number, _, _ in tracked}
    nodes: dict[int, tuple[BackwardNode, list[tuple[int, str]]]] = {}
    for where, tensor in results:
        node = tensor._grad_node
        if node is not None and node._unique_id() not in before and not node.is_leaf():
            _, slots = nodes.setdefault(node._unique_id(), (node, []))
            slots.append((tensor._output_index, where))
    if not nodes:
        return
    inputs: tuple[tuple[int, str], ...] | None = ()
    if engine.inputs_on and tracked:
        inputs = _direct(next(iter(nodes.values()))[0], tracked) if len(nodes) == 1 else None
    for node, slots in nodes.values():
        arriving = interned(slots) if engine.outputs_on else ()
        if engine.forcing is not None:
            engine.forcing.at_node(call, node, arriving, () if _COMPILED in node.name() else inputs or ())
        elif arriving or inputs:
            _hook(node, tracked, ApiNode(engine, call, arriving, inputs or ()))
    if inputs is None:
        at_inputs(engine, call, tracked, results)


def _direct(node: BackwardNode, tracked: Edges) -> tuple[tuple[int, str], ...] | None:
    """(gradient number, slot) of each input when the node leads to inputs alone, to each once; else None."""
    found: list[tuple[int, str]] = []
    for number, after, output in _edges_of(node, tracked):
        identity = after._unique_id()
        taken = {where for _, where in found}
        where = next(
            (w for w, made, index, _ in tracked if made == identity and index == output and w not in taken),
            None,
        )
        if where is None:
            return None
        found.append((number, where))
    return interned(found)


def _hook(node: BackwardNode, tracked: Edges, hook: Callable[..., object]) -> None:
    """Put a hook behind a node; it gets a gradient, or None, for each edge that ``_edges_of`` numbers.

    A compiled graph leaves out those of parameters that nobody asked for, and says so only by their number.
    """
    if _COMPILED not in node.name():
        node.register_hook(hook)
        return
    leaf = [after.is_leaf() for _, after, _ in _edges_of(node, tracked)]

    def compiled(gradients: Gradients[Tensor], arriving: Gradients[Tensor]) -> None:
        if len(gradients) != len(leaf):
            rest = iter(gradients)
            known = len(gradients) == leaf.count(False)
            gradients = tuple(next(rest) if known and not is_leaf else None for is_leaf in leaf)
        hook(gradients, arriving)

    node.register_hook(compiled)


def _edges_of(node: BackwardNode, tracked: Edges) -> Iterator[tuple[int, BackwardNode, int]]:
    """Number of the gradient, the node it goes to, and which of that node's outputs it is the gradient of.

    The node of a compiled graph gives its hook only the gradients that go anywhere.
    """
    compact = _COMPILED in node.name()
    without = {made for where, made, _, _ in tracked if where == _NONE}
    number = 0
    for after, output in node.next_functions:
        goes = after is not None and after._unique_id() not in without
        if goes:
            yield number, after, output
        number += goes or not compact


def consumers_of(tracked: Edges, results: list[tuple[str, Tensor]]) -> Consumers:
    """Nodes between the outputs and the inputs that send gradients straight to an input, with their slots.

    Stops at the inputs' own nodes, at leaves, and at nodes older than the newest input: those belong to what
    the call read from outside its arguments.
    """
    wanted = {(number, output): where for where, number, output, _ in reversed(tracked) if where != _NONE}
    seen = {number for _, number, _, _ in tracked}
    newest = max((place for _, _, _, place in tracked if place < _LEAF), default=-1)
    todo = [t._grad_node for _, t in results if t._grad_node is not None]
    found = []
    while todo:
        node = todo.pop()
        identity = node._unique_id()
        if identity in seen or node.is_leaf() or node._sequence_nr() <= newest:
            continue
        seen.add(identity)
        slots = []
        for number, after, output in _edges_of(node, tracked):
            where = wanted.get((after._unique_id(), output))
            if where is not None:
                slots.append((number, where))
            else:
                todo.append(after)
        if slots:
            found.append((node, slots))
    return found
