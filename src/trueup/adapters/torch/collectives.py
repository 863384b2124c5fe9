"""Collectives: the Python functions of ``torch.distributed``, and those the framework itself issues inside
backward.

Inside backward a dispatch mode sees the operators (DDP's own all-reduce buckets never pass through Python
functions). What a collective writes is read when it returns; an asynchronous one is marked, its result is
seen where it is used. Functional collectives (``_c10d_functional``, those of DTensor) return memory that is
filled later: it is read when ``wait_tensor`` has awaited it, never before.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from trueup.adapters.collectives import FUNCTIONS, ONLY_WRITTEN
from trueup.adapters.torch.engine import Engine
from trueup.adapters.torch.quiet import quiet
from trueup.adapters.torch.trees import split_call
from trueup.adapters.torch.uninitialised import REASON

_is_compiling = torch.compiler.is_compiling

_ONLY_WRITTEN = {
    **ONLY_WRITTEN,
    "allgather_": ("0",),
    "_allgather_base_": ("0",),
    "reduce_scatter_": ("0",),
    "_reduce_scatter_base_": ("0",),
    "alltoall_": ("0",),
    "alltoall_base_": ("0",),
    "gather_": ("0",),
    "scatter_": ("0",),
    "recv_": ("0",),
    "recv_any_source_": ("0",),
    "allgather_coalesced_": ("0",),
    "allgather_into_tensor_coalesced_": ("0",),
    "reduce_scatter_tensor_coalesced_": ("0",),
}
"""the argument, by place or keyword, that a collective does not read: anything may be in it before"""

_FUNCTIONAL = "_c10d_functional"
_FUNCTIONAL_ONLY_WRITTEN = {
    "all_gather_into_tensor_out": ("out",),
    "reduce_scatter_tensor_out": ("out",),
    "irecv": ("0", "tensor"),
}
"""the same of functional ones, which return what they write"""
_WAIT, _WRAP = f"{_FUNCTIONAL}.wait_tensor", f"{_FUNCTIONAL}._wrap_tensor_autograd"
"""the end of one, and what notes for autograd that one is under way: nothing is in their argument yet"""

_engine: Engine | None = None


class _Thread(threading.local):
    inside = False
    """in a collective that calls others"""


_thread = _Thread()


def install(engine: Engine) -> None:
    """Wrap the functions, or hand those in place another engine."""
    global _engine
    first = _engine is None
    _engine = engine
    engine.collective_watch = watch_backward
    if not first or not dist.is_available():
        return
    for name in FUNCTIONS:
        original = getattr(dist, name, None)
        if original is not None:
            wrapped = _wrap(name, original)
            for home in (dist, dist.distributed_c10d):
                setattr(home, name, wrapped)


def watch_backward(engine: Engine) -> AbstractContextManager[object]:
    """A context for one backward that sees the collectives issued in it."""
    if not (engine.sink.active and engine.collectives_on and dist.is_available() and dist.is_initialized()):
        return nullcontext()
    return _BackwardCollectives(engine)


def _wrap(name: str, original: Callable[..., object]) -> Callable[..., object]:
    qualified = f"torch.distributed.{name}"

    @functools.wraps(original)
    def collective(*args: object, **kwargs: object) -> object:
        engine = _engine
        if engine is None or _thread.inside or _is_compiling() or not _is_seen(engine):
            return original(*args, **kwargs)
        if not (engine.sink.active and engine.collectives_on):
            _forget(engine)
            result = original(*args, **kwargs)
            _wrote(engine, qualified, args, kwargs, awaited=result is not None)
            return result
        _thread.inside = True
        try:
            call = _record(engine, qualified, "input", args, kwargs, None)
            result = original(*args, **kwargs)
            _forget(engine)
            _wrote(engine, qualified, args, kwargs, awaited=result is not None)
            if result is None:
                _record(engine, qualified, "output", args, kwargs, call)
        finally:
            _thread.inside = False
        return result

    return collective


class _BackwardCollectives(TorchDispatchMode):
    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in ("c10d", _FUNCTIONAL) or _thread.inside:
            return func(*args, **(kwargs or {}))
        name = func._schema.name.replace("::", ".")
        if name == _WRAP:
            return func(*args, **(kwargs or {}))
        if name != _WAIT:
            _record(self._engine, name, "input", args, kwargs or {}, None)
        result = func(*args, **(kwargs or {}))
        _forget(self._engine)
        if name == _WAIT:
            _record(self._engine, name, "output", args, kwargs or {}, None)
        _wrote(self._engine, name, args, kwargs or {})
        return result


def _record(
    engine: Engine,
    name: str,
    side: str,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    call: int | None,
) -> int | None:
    try:
        with quiet():
            tensors, arguments = split_call(
                tuple(_without_group(one) for one in args),
                {name: _without_group(one) for name, one in kwargs.items()},
            )
            if call is None:
                frame = engine.enclosing()
                stack = engine.stack_number(2, frame) if engine.stacks_on else None
                mode = frame.mode if frame is not None else "train"
                call = engine.add_call(
                    "collective", name, None, mode, frame, stack=stack, arguments=arguments
                )
            unread = _only_written(name) if side == "input" else ()
            for where, tensor in tensors:
                if unread and where.split(".")[1] in unread:
                    engine.without_values(call, "collective", where, tensor, REASON)
                else:
                    engine.tensor(call, "collective", where.replace("input", side, 1), tensor)
    except Exception as error:
        engine.failed(name, error)
    return call


def _only_written(name: str) -> tuple[str, ...]:
    home, _, function = name.rpartition(".")
    return (_FUNCTIONAL_ONLY_WRITTEN if home == _FUNCTIONAL else _ONLY_WRITTEN).get(function, ())


def _is_seen(engine: Engine) -> bool:
    try:
        return not engine.threads.apart
    except Exception as error:
        engine.failed("a collective", error)
        return False


def _forget(engine: Engine) -> None:
    """A collective may have written what was summarised."""
    try:
        engine.summariser.forget()
    except Exception as error:
        engine.failed("a collective", error)


def _wrote(
    engine: Engine, name: str, args: tuple[object, ...], kwargs: dict[str, object], *, awaited: bool = False
) -> None:
    """A collective has filled what it only writes, or will have when it is awaited."""
    try:
        memory = engine.uninitialised
        filled = _only_written(name)
        if not (memory.left and filled):
            return
        with quiet():
            for where, tensor in split_call(args, kwargs)[0]:
                if where.split(".")[1] in filled:
                    (memory.awaited if awaited else memory.written)(tensor)
    except Exception as error:
        engine.failed(name, error)


def _without_group(argument: object) -> object:
    """A process group as the ranks in it: "0 2"."""
    if not isinstance(argument, dist.ProcessGroup):
        return argument
    return " ".join(map(str, dist.get_process_group_ranks(argument)))
