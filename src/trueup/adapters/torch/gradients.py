"""Gradients, observed without touching the graph: tensor hooks on outputs, node hooks on the consumers of
inputs.

At an output: the total gradient. At an input: what *this* call sends back, summed over the uses it makes of
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trueup.adapters.torch.engine import Engine

Edges = list[tuple[str, Any, int, Tensor | None]]
"""(slot, node that made the input, its output number, the input itself when it is a leaf)"""

Slots = tuple[tuple[int, str], ...]
"""(number of the gradient, slot)"""

_no_torch_function = torch._C.DisableTorchFunction
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
            tensor.register_hook(_Arrival(engine, call, where))


def at_inputs(
    engine: Engine, call: int, tracked: Edges, results: list[tuple[str, Tensor]], began: int
) -> None:
    """Record, at each input, the gradient this call sends to it; ``began`` is ``now()`` before the call."""
    consumers = _consumers(tracked, [t.grad_fn for _, t in results if t.requires_grad], began)
    if not consumers:
        return
    uses: dict[str, int] = {}
    for _, slots in consumers:
        for _, where in slots:
            uses[where] = uses.get(where, 0) + 1
    if engine.forcing is not None:
        engine.forcing.at_inputs(call, uses, consumers)
        return
    sums = _Sums(engine, call, uses)
    for node, slots in consumers:
        node.register_hook(_Use(sums, _interned(slots)))


def at_api(engine: Engine, call: int, tracked: Edges, results: list[tuple[str, Tensor]], began: int) -> None:
    """Both sides of an API call; when it made a single node, one hook serves both."""
    nodes: dict[Any, list[tuple[int, str]]] = {}
    for where, tensor in results:
        node = tensor.grad_fn if tensor.requires_grad else None
        if node is not None and not any(node is made for _, made, _, _ in tracked):
            nodes.setdefault(node, []).append((tensor.output_nr, where))
    if not nodes:
        return
    depths = engine.depths
    depth = 1 + max([depths.get(id(made), 0) for _, made, _, _ in tracked], default=0)
    if depth > engine.MAX_DEPTH:
        engine.too_deep()
        return
    inputs: Slots | None = ()
    if engine.inputs_on and tracked:
        inputs = _direct(next(iter(nodes)), tracked) if len(nodes) == 1 else None
    for node, outputs in nodes.items():
        depths[id(node)] = depth
        arriving = _interned(outputs) if engine.outputs_on else ()
        if engine.forcing is not None:
            engine.forcing.at_node(call, node, arriving, inputs or ())
        elif arriving or inputs:
            node.register_hook(_Node(engine, call, arriving, inputs or ()))
    if inputs is None:
        at_inputs(engine, call, tracked, results, began)


def _direct(node: Any, tracked: Edges) -> Slots | None:
    """(gradient number, slot) of each input when the node leads to inputs alone and to each once, else None.

    A tensor given twice has two slots: its uses are dealt out in order.
    """
    found: list[tuple[int, str]] = []
    for number, (after, output) in enumerate(node.next_functions):
        if after is None:
            continue
        where = _slot_of(after, output, tracked, found)
        if where is None:
            return None
        found.append((number, where))
    return _interned(found)


_known_slots: dict[Slots, Slots] = {}


def _interned(slots: list[tuple[int, str]]) -> Slots:
    """The same few tuples over and over: one object each, or the garbage collector has thousands to visit."""
    key = tuple(slots)
    return _known_slots.setdefault(key, key)


class _Arrival:
    """Tensor hook: the total gradient at an output."""

    __slots__ = ("_call", "_engine", "_recorder", "_where")

    def __init__(self, engine: Engine, call: int, where: str) -> None:
        self._engine = engine
        self._recorder = engine.sink.recorder
        self._call = call
        self._where = where

    def __call__(self, gradient: Tensor) -> None:
        _record(self._engine, self._recorder, self._call, self._where, gradient)


class _Node:
    """Node hook of an API call: what arrives at its outputs, what it sends to its inputs."""

    __slots__ = ("_call", "_engine", "_inputs", "_outputs", "_recorder")

    def __init__(self, engine: Engine, call: int, outputs: Slots, inputs: Slots) -> None:
        self._engine = engine
        self._recorder = engine.sink.recorder
        self._call = call
        self._outputs = outputs
        self._inputs = inputs

    def __call__(self, gradients: tuple[Any, ...], arriving: tuple[Any, ...]) -> None:
        engine, recorder, call = self._engine, self._recorder, self._call
        for number, where in self._outputs:
            if arriving[number] is not None:
                _record(engine, recorder, call, where, arriving[number])
        for number, where in self._inputs:
            if gradients[number] is not None:
                _record(engine, recorder, call, where, gradients[number])
        if engine.overflow is not None and engine.overflow.pending == call:
            kept = [(where, arriving[number]) for number, where in self._outputs]
            engine.overflow.keep(call, "backward", [(w, g) for w, g in kept if g is not None])


class _Use:
    """Node hook of one consumer of a call's inputs."""

    __slots__ = ("_slots", "_sums")

    def __init__(self, sums: _Sums, slots: Slots) -> None:
        self._sums = sums
        self._slots = slots

    def __call__(self, gradients: tuple[Any, ...], _: Any) -> None:
        self._sums.add(gradients, self._slots)


def _slot_of(node: Any, output: int, tracked: Edges, taken: Sequence[tuple[int, str]] = ()) -> str | None:
    for where, made, number, leaf in tracked:
        if leaf is None:
            found = made is node and number == output
        else:
            found = getattr(node, "variable", None) is leaf
        if found and not any(where == other for _, other in taken):
            return where
    return None


def _consumers(tracked: Edges, roots: list[Any], began: int) -> list[tuple[Any, list[tuple[int, str]]]]:
    """Nodes between the outputs and the inputs that send gradients straight to an input, with their slots.

    Stops at the inputs' own nodes, and at nodes older than the call: those belong to what it read from
    outside its arguments. A tensor given twice counts under the first of its slots: the graph does not tell
    its uses apart.
    """
    wanted = {(node, number): where for where, node, number, _ in reversed(tracked) if node is not None}
    leaves = [one for one in tracked if one[3] is not None]
    seen = {node for _, node, _, _ in tracked}
    seen.add(None)
    todo = [root for root in roots if root not in seen]
    found = []
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        slots = []
        for number, edge in enumerate(node.next_functions):
            where = wanted.get(edge)
            if where is None and leaves and edge[0] is not None:
                where = _slot_of(edge[0], edge[1], leaves)
            if where is not None:
                slots.append((number, where))
            elif (after := edge[0]) not in seen and after._sequence_nr() >= began:
                todo.append(after)
        if slots:
            found.append((node, slots))
    return found


class _Sums:
    """Gradient sent to an input over several uses: recorded when the last one has come, or when backward
    ends."""

    __slots__ = ("_call", "_engine", "_left", "_recorder", "_sums", "_uses")

    def __init__(self, engine: Engine, call: int, uses: dict[str, int]) -> None:
        self._engine = engine
        self._recorder = engine.sink.recorder
        self._call = call
        self._uses = uses
        self._left = dict(uses)
        self._sums: dict[str, Tensor] = {}

    def add(self, gradients: tuple[Any, ...], slots: Slots) -> None:
        """One consumer has run."""
        if not self._engine.sink.active or self._engine.sink.recorder is not self._recorder:
            return
        try:
            with _no_torch_function(), torch.no_grad():
                for number, where in slots:
                    self._add(where, gradients[number])
        except Exception as error:
            self._engine.failed(f"backward input {slots}", error)

    def _add(self, where: str, gradient: Tensor | None) -> None:
        self._left[where] -= 1
        if gradient is not None:
            if self._uses[where] == 1:
                _record(self._engine, self._recorder, self._call, where, gradient)
                self._left[where] = 1
                return
            known = self._sums.get(where)
            self._sums[where] = gradient if known is None else known + gradient
            self._engine.unfinished[id(self)] = self
        if self._left[where] == 0:
            self._finish(where)

    def _finish(self, where: str) -> None:
        self._left[where] = self._uses[where]
        total = self._sums.pop(where, None)
        if total is not None:
            _record(self._engine, self._recorder, self._call, where, total)

    def flush(self) -> None:
        """Backward is over: what has not come will not come."""
        for where in list(self._sums):
            self._finish(where)


def _record(engine: Engine, recorder: Any, call: int, where: str, gradient: Tensor) -> None:
    if not engine.sink.active or engine.sink.recorder is not recorder:
        return
    try:
        with _no_torch_function():
            engine.tensor(call, "backward", where, gradient, recorder.calls[call][5])
    except Exception as error:
        engine.failed(f"gradient {where}", error)
