"""Collectives: the functions of ``mint.distributed`` and ``comm_func``, and the communication primitives.

Those that MindSpore issues by itself inside backward pass through no Python and are not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from mindspore import Tensor
from mindspore.communication import comm_func
from mindspore.mint import distributed
from mindspore.ops import Primitive
from mindspore.ops.operations import comm_ops

from trueup.adapters.collectives import FUNCTIONS, ONLY_WRITTEN
from trueup.adapters.mindspore.engine import Engine
from trueup.adapters.mindspore.trees import split_call, split_result

PRIMITIVES = (
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "Broadcast",
    "AlltoAll",
    "AlltoAllV",
    "NeighborExchange",
    "NeighborExchangeV2",
    "CollectiveScatter",
    "CollectiveGather",
    "Reduce",
    "Send",
    "Receive",
)
_NOT_READ = "uninitialised memory"
_LIMIT = "collectives that MindSpore issues by itself inside backward are not seen; their results are"

_engine: Engine | None = None


def install(engine: Engine) -> None:
    """Wrap the functions, or hand those in place another engine."""
    global _engine
    first = _engine is None
    _engine = engine
    if not first:
        return
    for home, place in (
        (distributed, "mindspore.mint.distributed"),
        (comm_func, "mindspore.communication.comm_func"),
    ):
        for name in FUNCTIONS:
            original = getattr(home, name, None)
            if original is not None:
                setattr(home, name, _wrap(original, f"{place}.{name}"))
    for name in PRIMITIVES:
        kind = getattr(comm_ops, name, None)
        if isinstance(kind, type) and issubclass(kind, Primitive):
            kind.__call__ = _wrap(kind.__call__, f"mindspore.ops.Primitive.{name}", method=True)  # type: ignore[method-assign]


def _wrap(original: Callable[..., object], name: str, *, method: bool = False) -> Callable[..., object]:
    @functools.wraps(original)
    def collective(*args: object, **kwargs: object) -> object:
        engine = _engine
        if engine is None or not (engine.sink.active and engine.collectives_on) or engine.local.opaque:
            return original(*args, **kwargs)
        given = args[1:] if method else args
        with engine.quiet():
            call = _record(engine, name, given, kwargs)
            result = original(*args, **kwargs)
            if call is not None:
                _record_output(engine, call, given, kwargs, result)
        return result

    return collective


def _record(engine: Engine, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> int | None:
    try:
        tensors, arguments = split_call(args, kwargs)
        frame = engine.enclosing()
        if frame is not None and engine.training.with_gradients:
            engine.sink.limit(_LIMIT)
        stack = engine.stack_number(2, frame) if engine.stacks_on else None
        mode = frame.mode if frame is not None else "train"
        call = engine.add_call("collective", name, None, mode, frame, stack=stack, arguments=arguments)
        unread = ONLY_WRITTEN.get(name.rpartition(".")[2], ()) if ".mint." in name else ()
        for where, tensor in tensors:
            if where.split(".")[1] in unread:
                engine.without_values(call, "collective", where, tensor, _NOT_READ)
            else:
                engine.tensor(call, "collective", where, tensor)
        return call
    except Exception as error:
        engine.failed(name, error)
        return None


def _record_output(
    engine: Engine, call: int, args: tuple[object, ...], kwargs: dict[str, object], result: object
) -> None:
    """A collective returns what it made, or nothing and has written into its arguments.

    One that only gives back a handle is still under way: its result is seen where it is used.
    """
    try:
        results = [(w, t) for w, t in split_result(result) if isinstance(t, Tensor)]
        if result is None:
            results = [(w.replace("input", "output", 1), t) for w, t in split_call(args, kwargs)[0]]
        for where, tensor in results:
            engine.tensor(call, "collective", where, tensor)
    except Exception as error:
        engine.failed("collective", error)
