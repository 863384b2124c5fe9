"""Cell calls: ``nn.Cell.__call__`` is replaced once by a wrapper that looks at one flag while idle.

Not forward hooks: a cell with hooks takes another way through MindSpore than one without. A compiled cell or
function is seen at its boundary only and named as opaque.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from mindspore import nn

from trueup.adapters.engine import ModuleFrame
from trueup.adapters.mindspore import compiled, gradients
from trueup.adapters.mindspore.engine import TRANSPARENT, Engine
from trueup.adapters.mindspore.training import OPTIMIZERS
from trueup.adapters.mindspore.trees import split_call, split_result

_engine: Engine | None = None
_original = nn.Cell.__call__


def install(engine: Engine) -> None:
    """Put the wrapper in place, or hand the one in place another engine."""
    global _engine
    _engine = engine
    engine.boundary = _wrapped_call.__code__
    if nn.Cell.__call__ is not _wrapped_call:
        nn.Cell.__call__ = _wrapped_call


def _wrapped_call(self: nn.Cell, *args: object, **kwargs: object) -> object:
    engine = _engine
    if engine is None:
        return _original(self, *args, **kwargs)
    if isinstance(self, OPTIMIZERS):
        return _update(engine, self, args, kwargs)
    local = engine.local
    if local.depth == 0:
        result = _top_level(engine, self, args, kwargs)
    elif not engine.sink.active or local.opaque or engine.in_optimizer:
        result = _original(self, *args, **kwargs)
    else:
        result = _captured(engine, self, args, kwargs)
    if id(self) in engine.watched and engine.measures is not None:
        engine.measures.output(self, result)
    return result


def _update(
    engine: Engine, optimizer: nn.Cell, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """An optimizer is a cell too: called with gradients, it updates its parameters."""
    if engine.in_optimizer:
        return _original(optimizer, *args, **kwargs)
    try:
        with engine.quiet():
            engine.training.before_update(optimizer, args)
            if engine.long_run is not None:
                engine.long_run.hold(optimizer, args[0] if args else None)
    except Exception as error:
        engine.failed("optimizer", error)
    engine.in_optimizer = True
    try:
        result = _original(optimizer, *args, **kwargs)
    finally:
        engine.in_optimizer = False
    try:
        with engine.quiet():
            if engine.long_run is not None:
                engine.long_run.release()
            engine.training.after_update(optimizer)
    except Exception as error:
        engine.failed("optimizer", error)
    return result


def _top_level(engine: Engine, cell: nn.Cell, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """A cell call inside no other: the place where steps and microbatches turn."""
    local = engine.local
    training = engine.training
    recompute = training.in_backward
    if local.opaque or engine.in_optimizer:
        return _original(cell, *args, **kwargs)
    if _asked(engine, cell, _only_wraps):
        if compiled.in_graph_mode() and not training.recording:
            return compiled.whole_step(engine, cell, functools.partial(_original, cell), args, kwargs)
        return _original(cell, *args, **kwargs)
    if engine.models and not recompute and _asked(engine, cell, _holds_parameters_of_others):
        return _original(cell, *args, **kwargs)
    if engine.perturbation is not None and not recompute:
        args, kwargs = engine.perturbation.enter(engine, cell, args, kwargs)
    try:
        with engine.quiet():
            wanted = recompute or _announce(engine, cell, args, kwargs)
    except Exception as error:
        engine.failed(type(cell).__name__, error)
        wanted = False
    local.depth += 1
    local.opaque += not wanted
    try:
        if wanted and engine.sink.active and not local.opaque:
            return _captured(engine, cell, args, kwargs)
        return _original(cell, *args, **kwargs)
    except BaseException:
        if not recompute and training.with_gradients and engine.sink.active:
            engine.forward_failed()
        raise
    finally:
        local.opaque -= not wanted
        local.depth -= 1


def _asked(engine: Engine, cell: nn.Cell, question: Callable[[Engine, nn.Cell], bool]) -> bool:
    """The answer, and False where an error of ours is in the way."""
    try:
        return question(engine, cell)
    except Exception as error:
        engine.failed(type(cell).__name__, error)
        return False


def _only_wraps(engine: Engine, cell: nn.Cell) -> bool:
    """A training cell holds the model and its optimizer, and takes a whole step when it is called."""
    kind = type(cell).__name__
    if kind not in TRANSPARENT and not any(isinstance(inner, OPTIMIZERS) for inner in cell._cells.values()):
        return False
    if not kind.startswith("_"):
        engine.wrapped_by[kind] = None
    return True


def _holds_parameters_of_others(engine: Engine, cell: nn.Cell) -> bool:
    """Whether the program restricted capture to models this one is no part of; such a model may be inside."""
    models = [m for m in (r() for r in engine.models) if m is not None]
    inside = any(cell is inner for model in models for _, inner in engine.modules_below(engine.bare(model)))
    return bool(models) and not inside and engine.has_parameters(cell)


def _announce(engine: Engine, cell: nn.Cell, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Tell the session of a root call; returns whether its tensors are captured."""
    sink = engine.sink
    has_parameters = engine.has_parameters(cell)
    training = engine.training.with_gradients and any(
        parameter.requires_grad for _, parameter in engine.parameters_below(cell)
    )
    sink.root_begins(training=training, has_parameters=has_parameters)
    if engine.long_run is not None and has_parameters:
        engine.long_run.forward(training=training, cell=cell)
    if training:
        engine.training.root(cell, args, kwargs)
        return True
    if engine.measures is not None:
        engine.measures.root(cell, training=False)
    if has_parameters:
        engine.note_evaluated(cell)
        engine.evaluation_roots += 1
        return engine.evaluation_on and engine.evaluation_roots <= engine.MAX_EVALUATION_ROOTS
    return True


def _captured(engine: Engine, cell: nn.Cell, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    if type(cell).__name__ in TRANSPARENT:
        return _original(cell, *args, **kwargs)
    local = engine.local
    opaque = False
    frame: ModuleFrame | None = None
    tracked: gradients.Edges = []
    try:
        with engine.quiet():
            parent = engine.enclosing()
            opaque = _is_compiled(cell)
            frame, tracked = _enter(engine, cell, parent, args, kwargs, opaque)
            local.frames.append(frame)
            if engine.forcing is not None:
                args, kwargs = engine.forcing.arguments(args, kwargs)
    except Exception as error:
        engine.failed(type(cell).__name__, error)
        if frame is not None and local.frames and local.frames[-1] is frame:
            local.frames.pop()
        frame = None
    local.opaque += opaque
    try:
        result = _original(cell, *args, **kwargs)
    finally:
        local.opaque -= opaque
        if frame is not None:
            local.frames.pop()
            if engine.scope is not None:
                engine.left_scope(frame.call)
    if frame is not None and frame.kept and frame.recorder is engine.sink.recorder and engine.sink.active:
        try:
            with engine.quiet():
                _leave(engine, frame, tracked, result)
                if engine.overflow is not None and engine.overflow.pending == frame.call:
                    engine.overflow.keep(
                        frame.call, "forward", split_call(args, kwargs)[0], split_result(result)
                    )
        except Exception as error:
            engine.failed(frame.name, error)
    return result


def _enter(
    engine: Engine,
    cell: nn.Cell,
    parent: ModuleFrame | None,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    opaque: bool,
) -> tuple[ModuleFrame, gradients.Edges]:
    mode = parent.mode if parent is not None else engine.training.mode
    name = engine.name_of(cell, parent, recompute=mode == "recompute")
    kind = engine.class_of(cell)
    if opaque:
        engine.opaque_modules[name] = kind
    path = (*parent.path, name) if parent is not None else (name,)
    kept = engine.modules_on
    stack = engine.stack_number(3, parent) if engine.stacks_on else None
    tensors, arguments = split_call(args, kwargs) if kept else ([], None)
    call = engine.add_call(
        "module", name, kind, mode, parent, opaque=opaque, stack=stack, arguments=arguments
    )
    if engine.scope is not None:
        kept = engine.in_scope(call) and kept
    frame = ModuleFrame(call, name, mode, stack, path, kept, engine.sink.recorder)
    if not kept:
        return frame, []
    with_gradients = engine.training.with_gradients or engine.training.in_backward
    ordinal = engine.sink.recorder.calls.cell(call, "ordinal")
    frame.sender = engine.reentrant.sender(frame, parent, ordinal, grad_enabled=with_gradients)
    if engine.inputs_on and engine.forward_on:
        for where, tensor in tensors:
            engine.tensor(call, "forward", where, tensor)
    wanted = engine.backward_on and engine.inputs_on and with_gradients
    return frame, gradients.edges(tensors) if wanted else []


def _leave(engine: Engine, frame: ModuleFrame, tracked: gradients.Edges, result: object) -> None:
    results = split_result(result)
    if engine.outputs_on and engine.forward_on:
        for where, tensor in results:
            engine.tensor(frame.call, "forward", where, tensor)
    if engine.backward_on:
        if engine.outputs_on:
            gradients.at_outputs(engine, frame.sender, results)
        if tracked:
            gradients.at_inputs(engine, frame.sender, tracked, results)


def _is_compiled(cell: nn.Cell) -> bool:
    """Whether a call of it runs a compiled graph, whose inside is not seen."""
    if compiled.in_graph_mode():
        return True
    construct = type(cell).construct
    return hasattr(construct, "__wrapped_by_jit__") or bool(getattr(cell, "_jit_config_dict", None))
