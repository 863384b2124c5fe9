"""API calls: one permanent function mode that looks at one flag while idle.

It is there only when API calls are among the sites, or their names are wanted. It is entered once per thread
and never left (leaving and entering makes compiled code recompile), except around modules whose inference
fast path would notice it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from trueup.adapters.torch import dropout, gradients
from trueup.adapters.torch.engine import Engine
from trueup.adapters.torch.modules import FAST_PATHS
from trueup.adapters.torch.quiet import quiet
from trueup.adapters.torch.trees import split_call, split_result
from trueup.adapters.torch.uninitialised import (
    NOT_READ,
    ONLY_WRITING,
    OVERWRITING,
    REASON,
    RESERVING,
    RULES,
    SETITEM,
    is_only_written,
    without_beta,
)

_is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_graph_task = torch._C._current_graph_task_id
_tracing = torch._C._get_tracing_state
"""not None while ``torch.jit.trace`` writes down every operation: there must be none but the program's"""

_IGNORED = frozenset(RULES["ignored"])
_PROPERTIES = frozenset(RULES["properties"])
_FIRST = ("input.0", "input.self", "input.input")
"""where a call's first argument is, by place or by keyword"""

_PLACES = ("torch.functional.", "torch._VariableFunctionsClass.")
"""where functions are defined that are documented as torch's own: torch.einsum, torch._foreach_norm"""
_UNSEEN = (
    "torch._C.",
    "torch.distributed.distributed_c10d.",
    "profiler.",
    "torch._ops.profiler.",
    "torch.ops.profiler.",
)
"""torch's own machinery, collectives (which ``collectives`` records), and the marks of profilers"""

_names: dict[object, str | None] = {}
_genuine: dict[object, Any] = {}
"""what torch hands to a mode -> torch's own function"""


_HOMES = (torch.Tensor, torch.nn.functional, torch.functional, torch.nn.init)
"""where torch looks up a function by its name, to hand it to a mode"""
_ROOTS = tuple(os.path.dirname(file) + os.sep for file in (torch.__file__, __file__))
"""torch's, and capture's own, which are to be called as they are"""


def _is_torchs(value: object) -> bool:
    """Or capture's own, by the file of its code: ``functools.wraps`` copies name and module."""
    code = getattr(getattr(value, "fget", value), "__code__", None)
    return code is None or code.co_filename.startswith(_ROOTS)


_OWN = [{name: value for name, value in vars(home).items() if _is_torchs(value)} for home in _HOMES]


def genuine_of(func: Any) -> Any:
    """Torch's own function, where a program put one of its own in its place (``torch.Tensor.type = ...``).

    Torch hands a mode what stands under the function's name. The program's has been entered by then, and has
    called torch's own, whose place in the call this is: called again here, it would do its work twice.
    """
    found = func
    holder, slot = getattr(func, "__self__", None), getattr(func, "__name__", "")
    if not _is_torchs(holder if isinstance(holder, property) else func):
        for home, own in zip(_HOMES, _OWN, strict=True):
            beneath = torch._C.TensorBase if home is torch.Tensor else None
            for name, value in list(vars(home).items()):
                replaced = own.get(name, getattr(beneath, name, None))
                if value is func and replaced is not None:
                    found = replaced
                elif value is holder and hasattr(replaced, slot):
                    found = getattr(replaced, slot)
    with contextlib.suppress(TypeError):
        _genuine[func] = found
    return found


class ApiMode(TorchFunctionMode):
    """Records every overridable torch call made while the session is active."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[object, ...] = (), kwargs: Any = None
    ) -> Any:
        if _is_compiling() or _tracing() is not None:
            return func(*args, **(kwargs or {}))
        try:
            func = _genuine[func]
        except (KeyError, TypeError):
            func = genuine_of(func)
        engine = self.engine
        if not engine.sink.active or engine.in_optimizer:
            result = func(*args, **(kwargs or {}))
            if engine.api_on:
                try:
                    _follow(engine, func, args, kwargs, result)
                except Exception as error:
                    engine.failed("memory", error)
            return result
        try:
            name = _names[func]
        except (KeyError, TypeError):
            name = _name_or_none(engine, func)
        if name is None or engine.local.opaque:
            return func(*args, **(kwargs or {}))
        if not engine.api_on:
            if engine.names_functions and not engine.called.is_over:
                _note(engine, name, args, kwargs)
            return func(*args, **(kwargs or {}))
        return _captured(engine, name, func, args, kwargs)


def _note(engine: Engine, name: str, args: tuple[object, ...], kwargs: dict[str, object] | None) -> None:
    try:
        with quiet():
            tensors, arguments = split_call(args, kwargs)
            engine.note_function(name, arguments, tensors, _mode())
    except Exception as error:
        engine.failed(name, error)


# In one piece: runs around each function of torch: a call of its own for each part costs as much as the part.
def _captured(
    engine: Engine, name: str, func: Any, args: tuple[object, ...], kwargs: dict[str, object] | None
) -> Any:
    recorder, empty = engine.sink.recorder, engine.uninitialised
    try:
        frame = engine.enclosing()
        unseen = frame is None and engine.sink.over
    except Exception as error:
        engine.failed(name, error)
        unseen = True
    if unseen:
        return func(*args, **(kwargs or {}))
    call = -1
    tracked: gradients.Edges = []
    began = 0
    kept = True
    try:
        with quiet():
            tensors, arguments = split_call(args, kwargs)
            stack = engine.stack_number(2, frame) if engine.stacks_on else None
            mode = frame.mode if frame is not None else _mode()
            call = engine.add_call("api", name, None, mode, frame, stack=stack, arguments=arguments)
            if engine.scope is not None:
                kept = engine.in_scope(call)
            if kept:
                if engine.inputs_on and engine.forward_on:
                    read = tensors[1:] if name in OVERWRITING else tensors
                    writes = name in ONLY_WRITING or (kwargs is not None and "out" in kwargs)
                    for where, tensor in read:
                        if writes and is_only_written(name, where):
                            continue
                        if kwargs and "beta" in kwargs and where in _FIRST and without_beta(name, kwargs):
                            engine.without_values(call, "forward", where, tensor, NOT_READ)
                        elif empty.left and empty.meaningless(tensor, name, first=where in _FIRST):
                            engine.without_values(call, "forward", where, tensor, REASON)
                        else:
                            engine.tensor(call, "forward", where, tensor)
                if engine.backward_on and engine.shallow and _grad_enabled():
                    tracked = gradients.edges(tensors)
                    began = gradients.now()
    except Exception as error:
        engine.failed(name, error)
        call = -1
    result = func(*args, **(kwargs or {}))
    if (
        call >= 0
        and kept
        and result is not NotImplemented
        and recorder is engine.sink.recorder
        and engine.sink.active
    ):
        try:
            with quiet():
                results = split_result(result)
                if empty.left or name in RESERVING:
                    empty.called(name, args, kwargs or {}, results)
                if name == SETITEM:  # it returns nothing: what it wrote is its output all the same
                    results = [("output.0", tensors[0][1])]
                if engine.outputs_on and engine.forward_on and name not in RESERVING:
                    for where, tensor in results:
                        if empty.left and empty.holds(tensor):
                            engine.without_values(call, "forward", where, tensor, REASON)
                        else:
                            engine.tensor(call, "forward", where, tensor)
                if name in dropout.NAMES and "dropout" in engine.sink.options.store_values_of:
                    dropout.note(engine, call, args, kwargs or {}, result)
                if engine.overflow is not None and engine.overflow.pending == call:
                    engine.overflow.keep(call, "forward", tensors, results)
                if engine.backward_on and engine.shallow and _grad_enabled():
                    gradients.at_api(engine, call, tracked, results, began)
        except Exception as error:
            engine.failed(name, error)
    if engine.scope is not None and call >= 0:
        engine.left_scope(call)
    return result


def _follow(
    engine: Engine, func: Any, args: tuple[object, ...], kwargs: dict[str, object] | None, result: object
) -> None:
    """Between captured steps: memory that is reserved, or written, is known all the same."""
    name = _FOLLOWED.get(func)
    if name is None or not (engine.uninitialised.left or name in RESERVING):
        return
    with quiet():
        engine.uninitialised.called(name, args, kwargs or {}, split_result(result))


def _mode() -> str:
    if _graph_task() != -1:
        return "recompute"
    return "train" if _grad_enabled() else "eval"


def _name_or_none(engine: Engine, func: Any) -> str | None:
    try:
        return _name(func)
    except Exception as error:
        engine.failed("the name of a function", error)
        return None


def _name(func: Any) -> str | None:
    """Documented name of a torch function; None when it is no site."""
    try:
        known = resolve_name(func) or resolve_name(getattr(func, "__wrapped__", func))  # ours around torch's
        name = known or f"{func.__module__}.{func.__qualname__}"
    except AttributeError:
        name = str(func)
    for inner in _PLACES:
        if name.startswith(inner):
            name = "torch." + name.removeprefix(inner)
    found: str | None = name
    if (
        name in _IGNORED
        or name.startswith(_UNSEEN)
        or (name.endswith((".__get__", ".__set__", ".__delete__")) and name not in _PROPERTIES)
    ):
        found = None
    elif name in _PROPERTIES:
        found = name.removesuffix(".__get__")
    with contextlib.suppress(TypeError):
        _names[func] = found
    return found


def _functions(names: Iterable[str]) -> dict[object, str]:
    """What overridable functions of these names are handed to the mode as."""
    found: dict[object, str] = {}
    for name in names:
        path = name.removeprefix("torch.").split(".")
        with contextlib.suppress(AttributeError):
            found[functools.reduce(getattr, path, torch)] = name
    return found


_FOLLOWED = _functions(
    [
        *RESERVING,
        *(name for name in OVERWRITING if ".init." not in name),
        *RULES["overwriting_lists"],
        SETITEM,
    ]
)
"""functions that reserve memory or write it whole, for what happens between captured steps"""


def _enter_thread(mode: ApiMode) -> None:
    """Put the mode under the modes this thread has, but for that of the default device, which torch
    wants lowest.

    Not on top: a program that leaves its own mode (``with torch.device(...)``) takes the top one off,
    whichever that is.
    """
    local = mode.engine.local
    if local.has_mode or not mode.engine.sees_functions:
        return
    local.has_mode = True
    above = []
    while torch._C._len_torch_function_stack():
        above.append(torch._C._pop_torch_function_stack())
    above = [one for one in above if one is not mode]
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    lowest = [above.pop()] if above and above[-1] is default else []
    for one in (*lowest, mode, *reversed(above)):
        torch._C._push_on_torch_function_stack(one)


def _leave_thread(mode: ApiMode) -> None:
    """Take the mode off this thread's stack until ``_enter_thread``: thousands of calls follow, no sites."""
    if mode.engine.local.has_mode and mode.engine.sees_functions:
        for other in reversed(_off(mode)):
            torch._C._push_on_torch_function_stack(other)


def _off(mode: ApiMode) -> list[object]:
    """Take the mode off the stack; returns what was above it, innermost first, and puts none of that back.

    While it handles a call torch itself has taken it off, and puts it back afterwards: nothing is done then.
    """
    stack = range(torch._C._len_torch_function_stack())
    if not any(torch._C._get_function_stack_at(at) is mode for at in stack):
        return []
    above = []
    while (top := torch._C._pop_torch_function_stack()) is not mode:
        above.append(top)
    mode.engine.local.has_mode = False
    return above


_modes: list[ApiMode] = []


def install(engine: Engine) -> ApiMode:
    """Enter the mode on this thread, or hand the one in place another engine."""
    if not _modes:
        _modes.append(ApiMode(engine))
        _leave_for_fast_paths(_modes[0])
    if _modes[0].engine is not engine:
        engine.local.has_mode = _modes[0].engine.local.has_mode
        _modes[0].engine = engine
    engine.enter_thread = functools.partial(_enter_thread, _modes[0])
    engine.leave_thread = functools.partial(_leave_thread, _modes[0])
    engine.enter_thread()
    return _modes[0]


def _leave_for_fast_paths(mode: ApiMode) -> None:
    """Modules with an inference fast path run without the mode when they could take it."""
    for kind in FAST_PATHS:
        original = kind.forward

        def forward(self: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            if _is_compiling() or _grad_enabled() or not mode.engine.local.has_mode:
                return _original(self, *args, **kwargs)
            with _Left(mode):
                return _original(self, *args, **kwargs)

        setattr(kind, "forward", functools.wraps(original)(forward))  # noqa: B010


class _Left:
    """Takes the mode off this thread's stack for a while."""

    def __init__(self, mode: ApiMode) -> None:
        self._mode = mode
        self._above: list[object] = []
        self._taken = False

    def __enter__(self) -> None:
        self._above = _off(self._mode)
        self._taken = not self._mode.engine.local.has_mode
        self._mode.engine.local.opaque += 1

    def __exit__(self, *_: object) -> None:
        self._mode.engine.local.opaque -= 1
        if not self._taken:
            return
        torch._C._push_on_torch_function_stack(self._mode)
        for other in reversed(self._above):
            torch._C._push_on_torch_function_stack(other)
        self._mode.engine.local.has_mode = True
