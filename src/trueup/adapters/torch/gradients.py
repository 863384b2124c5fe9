"""Gradients, observed without touching the graph: tensor hooks on outputs, node hooks on the consumers of inputs.

At an output: the total gradient. At an input: what *this* call sends back, summed over the uses it makes of it.
"""

from __future__ import annotations

from typing import Any

import torch

from trueup.adapters.torch.engine import Engine, Tensor

Edges = list[tuple[str, Any, int, Tensor | None]]
"""(slot, node that made the input, its output number, the input itself when it is a leaf)"""

_no_torch_function = torch._C.DisableTorchFunction
_sequence_number = torch.autograd._get_sequence_nr


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
    recorder = engine.sink.recorder
    for where, tensor in results:
        if tensor.requires_grad and tensor.grad_fn is not None:

            def hook(gradient: Tensor, where: str = where) -> None:
                _record(engine, recorder, call, where, gradient)

            tensor.register_hook(hook)


def at_inputs(engine: Engine, call: int, tracked: Edges, results: list[tuple[str, Tensor]]) -> None:
    """Record, at each input, the gradient this call sends to it."""
    consumers = _consumers(tracked, [t.grad_fn for _, t in results if t.requires_grad])
    if not consumers:
        return
    uses: dict[str, int] = {}
    for _, slots in consumers:
        for _, where in slots:
            uses[where] = uses.get(where, 0) + 1
    recorder = engine.sink.recorder
    sums = _Sums(engine, recorder, call, uses)
    for node, slots in consumers:

        def hook(gradients: tuple[Any, ...], _: Any, slots: list[tuple[int, str]] = slots) -> None:
            sums.add(gradients, slots)

        node.register_hook(hook)


def at_api(engine: Engine, call: int, tracked: Edges, results: list[tuple[str, Tensor]]) -> None:
    """Both sides of an API call; when it made a single node, one hook serves both."""
    nodes: dict[Any, list[tuple[int, str]]] = {}
    for where, tensor in results:
        node = tensor.grad_fn if tensor.requires_grad else None
        if node is not None and not any(node is made for _, made, _, _ in tracked):
            nodes.setdefault(node, []).append((tensor.output_nr, where))
    if not nodes:
        return
    recorder = engine.sink.recorder
    outputs_on, inputs_on = engine.outputs_on, engine.inputs_on
    if len(nodes) == 1:
        node, outputs = next(iter(nodes.items()))
        inputs = _direct(node, tracked)
        if inputs is not None:

            def hook(gradients: tuple[Any, ...], arriving: tuple[Any, ...]) -> None:
                if outputs_on:
                    for number, where in outputs:
                        if arriving[number] is not None:
                            _record(engine, recorder, call, where, arriving[number])
                if inputs_on:
                    for number, where in inputs:
                        if gradients[number] is not None:
                            _record(engine, recorder, call, where, gradients[number])

            node.register_hook(hook)
            return
    if outputs_on:
        for node, outputs in nodes.items():

            def arrived(_: Any, arriving: tuple[Any, ...], outputs: list[tuple[int, str]] = outputs) -> None:
                for number, where in outputs:
                    if arriving[number] is not None:
                        _record(engine, recorder, call, where, arriving[number])

            node.register_hook(arrived)
    if inputs_on and tracked:
        at_inputs(engine, call, tracked, results)


def _direct(node: Any, tracked: Edges) -> list[tuple[int, str]] | None:
    """(gradient number, slot) of each input when the node leads to inputs alone and to each once, else None."""
    found = []
    used = set()
    for number, (after, output) in enumerate(node.next_functions):
        if after is None:
            continue
        where = _slot_of(after, output, tracked)
        if where is None or where in used:
            return None
        used.add(where)
        found.append((number, where))
    return found


def _slot_of(node: Any, output: int, tracked: Edges) -> str | None:
    for where, made, number, leaf in tracked:
        if leaf is None:
            if made is node and number == output:
                return where
        elif getattr(node, "variable", None) is leaf:
            return where
    return None


def _consumers(tracked: Edges, roots: list[Any]) -> list[tuple[Any, list[tuple[int, str]]]]:
    """Nodes between the outputs and the inputs that send gradients straight to an input, with their slots.

    Stops at the inputs' own nodes, and at nodes older than the oldest of them: those belong to what the call read
    from outside its arguments.
    """
    made = {node for _, node, _, _ in tracked if node is not None}
    leaves = [leaf for _, _, _, leaf in tracked if leaf is not None]
    oldest = min((n._sequence_nr() for n in made), default=0) if not leaves else 0
    seen: set[Any] = set(made)
    todo = [r for r in roots if r is not None and r not in seen]
    found = []
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        slots = []
        for number, (after, output) in enumerate(node.next_functions):
            if after is None:
                continue
            where = _slot_of(after, output, tracked)
            if where is not None:
                slots.append((number, where))
            elif after not in seen and (not oldest or after._sequence_nr() > oldest):
                todo.append(after)
        if slots:
            found.append((node, slots))
    return found


class _Sums:
    """Gradient sent to an input over several uses: recorded when the last one has come, or when backward ends."""

    __slots__ = ("_call", "_engine", "_left", "_recorder", "_sums", "_uses")

    def __init__(self, engine: Engine, recorder: Any, call: int, uses: dict[str, int]) -> None:
        self._engine = engine
        self._recorder = recorder
        self._call = call
        self._uses = uses
        self._left = dict(uses)
        self._sums: dict[str, Tensor] = {}

    def add(self, gradients: tuple[Any, ...], slots: list[tuple[int, str]]) -> None:
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
