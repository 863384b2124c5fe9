"""Module calls: ``nn.Module.__call__`` is replaced once by a wrapper that looks at one flag while idle.

Not a global forward hook: those do not see keyword arguments, and re-registering them makes compiled code
recompile.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.module import Module

from trueup.adapters.torch import draws, gradients
from trueup.adapters.torch.device.recording import RECORDING
from trueup.adapters.torch.engine import (
    TRANSPARENT,
    Engine,
    ModuleFrame,
    ModuleTraits,
    class_name,
    has_parameters,
)
from trueup.adapters.torch.quiet import quiet
from trueup.adapters.torch.trees import split_call, split_result

_is_compiling = torch.compiler.is_compiling
_graph_task = torch._C._current_graph_task_id
_tracing = torch._C._get_tracing_state
_grad_enabled = torch.is_grad_enabled

IN_GRAPH = "modules are recorded into graphs of a device: what these compute when they run is not recorded"
FAST_PATHS = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
"""their inference fast path is taken only with no function mode about, and gives other bits"""

_engine: Engine | None = None
_original = Module.__call__


def install(engine: Engine) -> None:
    """Put the wrapper in place, or hand the one in place another engine."""
    global _engine
    _engine = engine
    engine.boundary = _wrapped_call.__code__
    if Module.__call__ is not _wrapped_call:
        Module.__call__ = _wrapped_call  # type: ignore[method-assign]


def _wrapped_call(self: Module, *args: object, **kwargs: object) -> object:
    if _is_compiling():
        return _original(self, *args, **kwargs)
    engine = _engine
    if engine is None or RECORDING.depth or _tracing() is not None:
        if engine is not None and RECORDING.depth:
            engine.sink.limit(IN_GRAPH)
        return _original(self, *args, **kwargs)
    if engine.uncompiled and type(self).__name__ == "OptimizedModule":
        return _original(self, *args, **kwargs)  # calls the module it wraps
    local = engine.local
    if local.depth == 0:
        result = _top_level(engine, self, args, kwargs)
    elif not engine.sink.active or local.opaque or engine.in_optimizer:
        result = _original(self, *args, **kwargs)
    else:
        result = _captured(engine, self, args, kwargs)
    if engine.watched and id(self) in engine.watched and engine.measures is not None:
        engine.measures.output(self, result)
    return result


def _top_level(engine: Engine, module: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """A module call inside no other: the place where steps and microbatches turn."""
    local = engine.local
    kind = type(module).__name__
    recompute = _graph_task() != -1
    try:
        unseen = _is_unseen(engine, module, kind, recompute=recompute)
    except Exception as error:
        engine.failed(kind, error)
        unseen = True
    if unseen:
        return _original(module, *args, **kwargs)
    if engine.perturbation is not None and not recompute and not engine.threads.apart:
        args, kwargs = engine.perturbation.enter(engine, module, args, kwargs)
    try:
        with quiet():
            wanted = recompute or _announce(engine, module, args, kwargs)
    except Exception as error:
        engine.failed(kind, error)
        wanted = False
    local.depth += 1
    local.opaque += not wanted
    try:
        if wanted and engine.sink.active and not local.opaque:
            return _captured(engine, module, args, kwargs)
        return _original(module, *args, **kwargs)
    except BaseException:
        if not recompute and _grad_enabled() and engine.sink.active:
            engine.forward_failed()
        raise
    finally:
        local.opaque -= not wanted
        local.depth -= 1


def _is_unseen(engine: Engine, module: Module, kind: str, *, recompute: bool) -> bool:
    """Whether a top-level call is no root: a wrapper, or a model that the program has not named."""
    if kind in TRANSPARENT:
        if kind not in engine.wrapped_by:
            engine.wrapped_by[kind] = None
            engine.replicas = _replicas(module)
            engine.groups = _groups(module)
        return True
    return bool(engine.models) and not recompute and _holds_parameters_of_others(engine, module)


def _holds_parameters_of_others(engine: Engine, module: Module) -> bool:
    """Whether the program restricted capture to models this one is no part of; such a model may be inside."""
    models = [m for m in (r() for r in engine.models) if m is not None]
    outside = bool(models) and not any(module is inner for m in models for inner in m.modules())
    return outside and has_parameters(module)


def _announce(engine: Engine, module: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Tell the session of a root call; returns whether its tensors are captured."""
    sink = engine.sink
    training = _grad_enabled() and any(p.requires_grad for p in module.parameters())
    if (training and not engine.threads.forward(module)) or engine.threads.apart:
        return not engine.threads.apart
    engine.enter_thread()
    engine.training.before_root(module, training=training)
    sink.root_begins(training=training, has_parameters=training or has_parameters(module))
    if engine.long_run is not None and (training or has_parameters(module)):
        engine.long_run.forward(training=training)
    if training:
        engine.training.root(module, args, kwargs)
        return True
    if engine.measures is not None:
        engine.measures.root(module, training=False)
    if has_parameters(module):
        engine.note_evaluated(module)
        engine.evaluation_roots += 1
        captured = engine.evaluation_on and engine.evaluation_roots <= engine.MAX_EVALUATION_ROOTS
        if captured and sink.active:
            engine.training.buffers.evaluation_root(module)
            engine.training.averages.evaluates()
        return captured
    return True


def _replicas(wrapper: Module) -> tuple[int, ...]:
    """Ranks among which a wrapper keeps whole copies of the weights; none where it shards them."""
    group = getattr(wrapper, "process_group", None)
    if type(wrapper).__name__ != "DistributedDataParallel" or group is None:
        return ()
    return tuple(torch.distributed.get_process_group_ranks(group))


_GROUPS = {
    "weights": ("process_group", "dp_cp_group", "data_parallel_group", "dp_group"),
    "batches": ("process_group", "dp_group", "data_parallel_group"),
    "experts": ("expt_dp_group",),
}
"""what a wrapper keeps on every rank of a group -> attributes for that group, of torch's and of Megatron's
DistributedDataParallel; batches: the ranks read different ones"""


def _groups(wrapper: Module) -> dict[str, list[int]]:
    """Ranks of this one's groups, by what a wrapper does among them; empty where it does not say."""
    found: dict[str, list[int]] = {}
    for kind, names in _GROUPS.items():
        group = next((one for name in names if (one := getattr(wrapper, name, None)) is not None), None)
        if isinstance(group, torch.distributed.ProcessGroup):
            found[kind] = torch.distributed.get_process_group_ranks(group)
    return found


# In one piece: runs around each module call: a call of its own for each part costs as much as the part.
def _captured(engine: Engine, module: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    kind = type(module)
    known = engine.kinds.get(kind) or _kind_of(engine, kind)
    if known is None or known.transparent:
        return _original(module, *args, **kwargs)
    local = engine.local
    frames = local.frames
    opaque = False
    tracked: gradients.Edges | None = None
    frame: ModuleFrame | None = None
    trial = None
    try:
        with quiet():
            parent = engine.enclosing()
            opaque = known.opaque or _is_compiled(engine, module)
            name = known.name if known.name is not None else class_name(module)
            trial = None if engine.forcing is None else engine.forcing.trial
            if trial is not None:
                args, kwargs = trial.given(parent, (args, kwargs))
            frame, tracked = _enter(engine, module, name, parent, args, kwargs, opaque)
            frames.append(frame)
            if engine.forcing is not None:
                args, kwargs = engine.forcing.arguments(args, kwargs)
    except Exception as error:
        engine.failed(kind.__name__, error)
        if frame is not None and frames and frames[-1] is frame:
            frames.pop()
        frame = None
    local.opaque += opaque
    try:
        if trial is None or frame is None:
            result = _original(module, *args, **kwargs)
        else:
            result = trial.run(frame, _original, module, args, kwargs)
    finally:
        local.opaque -= opaque
        if frame is not None:
            frames.pop()
            if engine.scope is not None:
                engine.left_scope(frame.call)
    if frame is not None and frame.kept and frame.recorder is engine.sink.recorder and engine.sink.active:
        try:
            with quiet():
                _leave(engine, frame, tracked, result)
                if engine.overflow is not None and engine.overflow.pending == frame.call:
                    engine.overflow.keep(
                        frame.call, "forward", split_call(args, kwargs)[0], split_result(result)
                    )
        except Exception as error:
            engine.failed(frame.name, error)
    return result


def _is_compiled(engine: Engine, module: Module) -> bool:
    """Whether a call runs what ``module.compile()`` has made."""
    return module._compiled_call_impl is not None and not engine.uncompiled


def _kind_of(engine: Engine, kind: type[Module]) -> ModuleTraits | None:
    """What a class says of its modules; None where that cannot be found out."""
    try:
        return engine.kinds.setdefault(kind, ModuleTraits(kind))
    except Exception as error:
        engine.failed(kind.__name__, error)
        return None


def _enter(
    engine: Engine,
    module: Module,
    kind: str,
    parent: ModuleFrame | None,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    opaque: bool,
) -> tuple[ModuleFrame, gradients.Edges | None]:
    grad_enabled = _grad_enabled()
    mode = parent.mode if parent is not None else _mode()
    name = engine.name_of(module, parent, recompute=mode == "recompute")
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
        return frame, None
    if engine.draws_on and mode == "train":
        frame.stood = draws.standing()
    if mode == "recompute" or not grad_enabled:
        ordinal = engine.sink.recorder.calls.cell(call, "ordinal")
        frame.sender = engine.reentrant.sender(frame, parent, ordinal, grad_enabled=grad_enabled)
    if not engine.inputs_on:
        return frame, None
    if engine.forward_on:
        for where, tensor in tensors:
            engine.tensor(call, "forward", where, tensor)
    if not (engine.backward_on and grad_enabled):
        return frame, None
    frame.began = gradients.now()
    return frame, gradients.edges(tensors)


def _leave(engine: Engine, frame: ModuleFrame, tracked: gradients.Edges | None, result: object) -> None:
    draws.note(engine, frame)
    results = split_result(result)
    if engine.outputs_on and engine.forward_on:
        for where, tensor in results:
            engine.tensor(frame.call, "forward", where, tensor)
    if engine.backward_on:
        if engine.outputs_on:
            gradients.at_outputs(engine, frame.sender, results)
        if tracked:
            gradients.at_inputs(engine, frame.sender, tracked, results, frame.began)


def _mode() -> str:
    if _graph_task() != -1:
        return "recompute"
    return "train" if _grad_enabled() else "eval"
