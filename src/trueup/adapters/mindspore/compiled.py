"""Compiled code, seen at its boundary: jitted functions, gradient functions and whole steps of graph mode.

The graph compiler reads the source of what it finds: while it compiles, MindSpore's own functions are back in
place of the wrappers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from mindspore import context, nn
from mindspore.graph import api as graph_api
from mindspore.graph.api import _JitExecutor

from trueup.adapters.mindspore import api, identities
from trueup.adapters.mindspore.engine import Engine
from trueup.adapters.mindspore.training import OPTIMIZERS, Weights
from trueup.adapters.mindspore.trees import split_call

GRAPH_MODE_LIMIT = (
    "the program trains in graph mode: of each step its inputs, loss, weights and what else crosses the "
    "boundary of the compiled graph are captured; run it in PyNative mode to see inside"
)
_GRADIENT_FUNCTION = "after_grad"
"""what MindSpore calls the function it makes of ``value_and_grad`` and ``grad``"""

_engine: Engine | None = None
_execute = _JitExecutor.__call__


def install(engine: Engine) -> None:
    """Put the wrappers in place, or hand those in place another engine."""
    global _engine
    first = _engine is None
    _engine = engine
    if not first:
        return
    numbers = identities.install()
    _JitExecutor.__call__ = _jitted
    for kind in (graph_api._JitExecutor, graph_api._CellGraphExecutor):
        kind.compile = _without_wrappers(kind.compile, numbers)


def in_graph_mode() -> bool:
    """Whether cells called now run compiled."""
    return bool(context._get_mode() == context.GRAPH_MODE)


def _without_wrappers(
    compile_: Callable[..., object], numbers: identities.Identities
) -> Callable[..., object]:
    @functools.wraps(compile_)
    def compiling(self: _JitExecutor, *args: object, **kwargs: object) -> object:
        known = len(graph_api.ms_compile_cache)
        with api.originals_in_place():
            key = compile_(self, *args, **kwargs)
        if len(graph_api.ms_compile_cache) > known and numbers.was_others(key) and _engine is not None:
            _engine.sink.limit(identities.ADDRESS_LIMIT)
        return key

    return compiling


def _jitted(self: _JitExecutor, *args: object, **kwargs: object) -> object:
    """A call of a jitted function: its inside is not seen."""
    engine = _engine
    if engine is None or engine.local.opaque or engine.in_optimizer:
        return _execute(self, *args, **kwargs)
    name = f"mindspore.jit.{self.fn.__name__}"
    bound = functools.partial(_execute, self)
    if self.fn.__name__ == _GRADIENT_FUNCTION and engine.local.depth == 0 and not engine.training.recording:
        return _gradients(engine, self, bound, args, kwargs)
    if not engine.sink.active:
        return bound(*args, **kwargs)
    engine.opaque_modules.setdefault(name, "function")
    if engine.api_on:
        return api.captured(engine, name, bound, args, kwargs, opaque=True)
    with engine.quiet():
        return bound(*args, **kwargs)


def _gradients(
    engine: Engine,
    executor: _JitExecutor,
    run: Callable[..., Any],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """A gradient function in graph mode: one compiled graph from the batch to the gradients."""
    captured = _closure(executor.fn)
    function, weights, operation = captured.get("fn"), captured.get("weights"), captured.get("grad_")
    root = function if isinstance(function, nn.Cell) else None
    name = getattr(function, "__name__", type(function).__name__)
    _begin(engine, root, weights, name, args, kwargs)
    with engine.quiet():
        result = run(*args, **kwargs)
    try:
        with engine.quiet():
            value, found = result if getattr(operation, "get_value", False) else (None, result)
            if value is not None:
                engine.training.loss(value)
            with_inputs = getattr(operation, "get_by_position", False) or getattr(operation, "get_all", False)
            engine.training.gradients(weights, found, with_inputs=bool(with_inputs))
    except Exception as error:
        engine.failed("gradients", error)
    return result


def whole_step(
    engine: Engine,
    cell: nn.Cell,
    run: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """A training cell in graph mode: one compiled graph from the batch to the updated weights."""
    optimizers = [inner for inner in cell._cells.values() if isinstance(inner, OPTIMIZERS)]
    root = engine.bare(cell)
    _begin(engine, root, None, engine.class_of(root), args, kwargs)
    with engine.quiet():
        for optimizer in optimizers:
            engine.training.before_update(optimizer, ())
        result = run(*args, **kwargs)
    try:
        with engine.quiet():
            engine.training.loss(result)
            engine.sink.backward_ended(gradients_present=False)
            for optimizer in optimizers:
                engine.training.after_update(optimizer)
    except Exception as error:
        engine.failed("the end of a compiled step", error)
    return result


def _begin(
    engine: Engine,
    root: nn.Cell | None,
    weights: Weights,
    name: str,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    """A compiled step begins: its batch, its weights, and a call that stands for all of it."""
    try:
        with engine.quiet():
            sink = engine.sink
            sink.backward_begins()
            sink.limit(GRAPH_MODE_LIMIT)
            if root is not None:
                engine.training.root(root, args, kwargs)
            else:
                engine.training.without_root(weights, args, kwargs)
            engine.opaque_modules[name] = "graph"
            if not sink.active:
                return
            tensors, arguments = split_call(args, kwargs)
            call = engine.add_call("module", name, name, "train", None, opaque=True, arguments=arguments)
            if engine.inputs_on and engine.forward_on:
                for where, tensor in tensors:
                    engine.tensor(call, "forward", where, tensor)
    except Exception as error:
        engine.failed("the beginning of a compiled step", error)


def _closure(function: FunctionType) -> dict[str, Any]:
    """Names and values a function takes from where it was made."""
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))
