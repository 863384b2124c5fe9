"""Gradients, observed without touching the graph: tensor hooks on outputs, node hooks on the consumers of
inputs.

At an output: the total gradient. At an input: what *this* call sends back, summed over the uses it makes of
it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import Node as GradNode

from trueup.adapters.gradients import ApiNode, Arrival, Slots, Sums, Use, interned, uses_of
from trueup.adapters.torch.engine import Engine

Edges = list[tuple[str, GradNode | None, int, Tensor | None]]
"""(slot, node that made the input, its output number, the input itself when it is a leaf)"""

Consumers = list[tuple[GradNode, list[tuple[int, str]]]]
"""nodes, with the numbers and slots of the gradients that they send to inputs"""

now = torch._C._autograd._get_sequence_nr
"""number that the next autograd node of this thread will get"""


def edges(tensors: list[tuple[str, Tensor]]) -> Edges:
    """Where the gradients of the inputs will go; taken before the call, because in-place calls change it."""
    found: Edges = []
    for where, tensor in tensors:
        if tensor.requires_grad:
            node = tensor.grad_fn
            found.append((where, node, tensor.output_nr, tensor if node is None else None))
    return found


def at_outputs(engine: Engine, call: int, results: list[tuple[str, Tensor]]) -> None:
    """Record the total gradient arriving at each output of a module call."""
    if engine.forcing is not None:
        engine.forcing.at_outputs(call, results)
        return
    for where, tensor in results:
        if tensor.requires_grad and tensor.grad_fn is not None:
            tensor.register_hook(Arrival(engine, call, where))


def at_inputs(
    engine: Engine, call: int, tracked: Edges, results: list[tuple[str, Tensor]], began: int
) -> None:
    """Record, at each input, the gradient this call sends to it; ``began`` is ``now()`` before the call."""
    consumers = consumers_of(tracked, [t.grad_fn for _, t in results if t.requires_grad], began)
    if not consumers:
        return
    uses = uses_of(consumers)
    if engine.forcing is not None:
        engine.forcing.at_inputs(call, uses, consumers)
        return
    sums = Sums(engine, call, uses)
    for node, slots in consumers:
        node.register_hook(Use(sums, interned(slots)))


def at_api(engine: Engine, call: int, tracked: Edges, results: list[tuple[str, Tensor]], began: int) -> None:
    """Both sides of an API call; when it made a single node, one hook serves both."""
    nodes: dict[GradNode, list[tuple[int, str]]] = {}
    for where, tensor in results:
        node = tensor.grad_fn if tensor.requires_grad else None
        if node is not None:
            nodes.setdefault(node, []).append((tensor.output_nr, where))
    depths, depth = engine.depths, 1
    for _, made, _, _ in tracked:
        if made is not None:
            nodes.pop(made, None)  # passed on unchanged
        depth = max(depth, depths.get(id(made), 0) + 1)
    if not nodes:
        return
    if depth > engine.MAX_DEPTH:
        engine.too_deep()
        return
    inputs: Slots | None = ()
    if engine.inputs_on and tracked:
        inputs = _direct(next(iter(nodes)), tracked) if len(nodes) == 1 else None
    for node, outputs in nodes.items():
        depths[id(node)] = depth
        arriving = interned(outputs) if engine.outputs_on else ()
        if engine.forcing is not None:
            engine.forcing.at_node(call, node, arriving, inputs or ())
        elif arriving or inputs:
            node.register_hook(ApiNode(engine, call, arriving, inputs or ()))
    if inputs is None:
        at_inputs(engine, call, tracked, results, began)


def _direct(node: GradNode, tracked: Edges) -> Slots | None:
    """(gradient number, slot) of each input when the node leads to inputs alone and to each once, else None.

    A tensor given twice has two slots: its uses are dealt out in order.
    """
    found: list[tuple[int, str]] = []
    left = list(tracked)
    for number, (after, output) in enumerate(node.next_functions):
        if after is None:
            continue
        for place, (where, made, nr, leaf) in enumerate(left):
            if (made is after and nr == output) if leaf is None else getattr(after, "variable", None) is leaf:
                found.append((number, where))
                del left[place]
                break
        else:
            return None
    return interned(found)


# In one piece: one walk of the graph, at every module call.
def consumers_of(tracked: Edges, roots: list[GradNode | None], began: int) -> Consumers:
    """Nodes between the outputs and the inputs that send gradients straight to an input, with their slots.

    Stops at the inputs' own nodes, and at nodes older than the call: those belong to what it read from
    outside its arguments. A tensor given twice counts under the first of its slots: the graph does not tell
    its uses apart.
    """
    wanted: dict[tuple[GradNode | None, int], str] = {
        (node, number): where for where, node, number, _ in reversed(tracked) if node is not None
    }
    leaves = [one for one in tracked if one[3] is not None]
    seen: set[GradNode | None] = {None, *(node for _, node, _, _ in tracked)}
    todo = [root for root in roots if root not in seen]
    found: Consumers = []
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        slots = []
        for number, edge in enumerate(node.next_functions):
            where = wanted.get(edge)
            if where is None and leaves and (leaf := _leaf_at(edge[0])) is not None:
                where = next((slot for slot, _, _, one in leaves if one is leaf), None)
            if where is not None:
                slots.append((number, where))
            elif (after := edge[0]) is not None and after not in seen and after._sequence_nr() >= began:
                todo.append(after)
        if slots:
            found.append((node, slots))
    return found


def _leaf_at(node: GradNode | None) -> Tensor | None:
    """The leaf whose gradient an edge to ``node`` is. Autocast casts a leaf once for all calls that use it:
    what arrives at that cast is of one call, what leaves it is of all."""
    leaf = getattr(node, "variable", None)
    if leaf is not None or node is None or node.name() != "ToCopyBackward0":
        return leaf
    leaf = getattr(node.next_functions[0][0], "variable", None)
    shared = leaf is not None and torch.is_autocast_enabled(leaf.device.type)
    return leaf if shared and not isinstance(leaf, torch.nn.Parameter) else None
