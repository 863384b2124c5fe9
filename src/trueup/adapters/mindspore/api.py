"""API calls: MindSpore's functions, primitives and Tensor methods, replaced by wrappers while they are sites.

MindSpore has no dispatcher to ask, so the functions themselves are replaced wherever a module holds them. Its
graph compiler reads the source of what it finds: while it compiles, the originals are back in place.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType

import yaml
from mindspore import Tensor
from mindspore.ops import Primitive

from trueup.adapters.mindspore import gradients
from trueup.adapters.mindspore.collectives import PRIMITIVES
from trueup.adapters.mindspore.engine import Engine
from trueup.adapters.mindspore.trees import split_call, split_result

_RULES = yaml.safe_load((Path(__file__).parent / "api_rules.yaml").read_text(encoding="utf-8"))
_IGNORED = frozenset(_RULES["ignored"])
_NOT_CALLS = _IGNORED | frozenset(PRIMITIVES)
"""names of primitives that are no API calls: collectives are sites of their own"""
_SETITEM = "mindspore.Tensor.__setitem__"
"""returns its tensor or nothing: what it wrote is its output all the same"""
_FRAMEWORK_HOLDERS = ("mindspore.nn.layer", "mindspore.mint.nn", "mindspore.nn.loss")
"""parts of MindSpore whose own calls count: layers are written in terms of functions"""

_engine: Engine | None = None
_patches: Patches | None = None


class Patches:
    """Every place a wrapper stands in, to be put there and taken away as a whole."""

    def __init__(self) -> None:
        self._places: list[tuple[object, str, object, object]] = []
        self._in_place = False

    def add(self, holder: object, name: str, original: object, wrapper: object) -> None:
        """``holder.name`` is to be ``wrapper``; ``original`` None means the attribute is inherited."""
        self._places.append((holder, name, original, wrapper))

    def put(self) -> None:
        """Wrappers in place."""
        if not self._in_place:
            for holder, name, _, wrapper in self._places:
                setattr(holder, name, wrapper)
        self._in_place = True

    def take(self) -> bool:
        """Originals in place; returns whether wrappers were."""
        if not self._in_place:
            return False
        for holder, name, original, _ in self._places:
            if original is None:
                delattr(holder, name)
            else:
                setattr(holder, name, original)
        self._in_place = False
        return True


def install(engine: Engine) -> None:
    """Replace the functions where API calls are sites or their names are wanted; put the originals back where
    they are not."""
    global _engine, _patches
    _engine = engine
    if _patches is None:
        if not engine.sees_functions:
            return
        _patches = _all_patches()
    if engine.sees_functions:
        _patches.put()
    else:
        _patches.take()


@contextmanager
def originals_in_place() -> Iterator[None]:
    """MindSpore's own functions instead of the wrappers, while the graph compiler reads them."""
    patches = _patches
    were_there = patches is not None and patches.take()
    try:
        yield
    finally:
        if were_there and patches is not None:
            patches.put()


def _all_patches() -> Patches:
    patches = Patches()
    wrappers = _functions()
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and _counts(module.__name__):
            for name, value in list(vars(module).items()):
                # not isinstance, which asks the value for its class: some warn that they are deprecated
                found = wrappers.get(id(value)) if type(value) is FunctionType else None
                if found is not None:
                    patches.add(module, name, value, found)
    _methods(patches)
    _primitives(patches)
    return patches


def _counts(module: str) -> bool:
    """Whether functions held by this module are called by a program, or by a layer on its behalf."""
    if module in _RULES["namespaces"]:
        return True
    return not module.startswith(("mindspore", "trueup")) or module.startswith(_FRAMEWORK_HOLDERS)


_originals: list[object] = []
"""keeps what ``_functions`` knows by identity alive"""


def _functions() -> dict[int, Callable[..., object]]:
    """Identity of each function that is a site -> its wrapper."""
    found: dict[int, Callable[..., object]] = {}
    for namespace in _RULES["namespaces"]:
        module = importlib.import_module(namespace)
        for name in getattr(module, "__all__", []):
            function = getattr(module, name, None)
            if isinstance(function, FunctionType) and name not in _IGNORED and id(function) not in found:
                _originals.append(function)
                found[id(function)] = _wrap(function, f"{namespace}.{name}")
    return found


def _methods(patches: Patches) -> None:
    unseen = frozenset(_RULES["unseen_methods"])
    names = set(_RULES["methods"]) | {
        name
        for kind in Tensor.__mro__
        for name, value in vars(kind).items()
        if callable(value)
        and not name.startswith("_")
        and name not in unseen
        and not isinstance(value, (staticmethod, classmethod, type))
    }
    for name in sorted(names):
        original = getattr(Tensor, name, None)
        if original is not None:
            own = vars(Tensor).get(name)
            patches.add(Tensor, name, own, _wrap(original, f"mindspore.Tensor.{name}"))


def _primitives(patches: Patches) -> None:
    """Primitives are called as objects; many classes have a ``__call__`` of their own."""
    todo: list[type] = [Primitive]
    seen: set[type] = set()
    while todo:
        kind = todo.pop()
        if kind in seen:
            continue
        seen.add(kind)
        todo += kind.__subclasses__()
        own = vars(kind).get("__call__")
        if isinstance(own, FunctionType):
            patches.add(kind, "__call__", own, _wrap_primitive(own))


def _wrap(original: Callable[..., object], name: str) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        engine = _engine
        if engine is None or not engine.sink.active or engine.local.opaque or engine.in_optimizer:
            return original(*args, **kwargs)
        return _seen(engine, name, original, args, kwargs)

    functools.update_wrapper(call, original, updated=())
    return call


def _wrap_primitive(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def call(self: Primitive, *args: object, **kwargs: object) -> object:
        engine = _engine
        if engine is None or not engine.sink.active or engine.local.opaque or engine.in_optimizer:
            return original(self, *args, **kwargs)
        if self.name in _NOT_CALLS:
            return original(self, *args, **kwargs)
        bound = functools.partial(original, self)
        return _seen(engine, f"mindspore.ops.Primitive.{self.name}", bound, args, kwargs)

    return call


def _seen(
    engine: Engine,
    name: str,
    original: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """Run a function that is a site, or whose name alone is wanted: what it calls inside is no other one."""
    if engine.api_on:
        return captured(engine, name, original, args, kwargs)
    local = engine.local
    if engine.called.is_over or local.in_function:
        return original(*args, **kwargs)
    local.in_function = True  # not opaque: cells that the function runs are sites
    try:
        with engine.quiet():
            tensors, arguments = split_call(args, kwargs)
            engine.note_function(name, arguments, tensors, engine.training.mode)
    except Exception as error:
        engine.failed(name, error)
    try:
        return original(*args, **kwargs)
    finally:
        local.in_function = False


# In one piece: runs around each function of MindSpore: a call for each part costs as much as the part.
def captured(
    engine: Engine,
    name: str,
    original: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    opaque: bool = False,
) -> object:
    """Run an API call and record what went in and came out, and what its gradients will be."""
    local = engine.local
    frame = engine.enclosing()
    if frame is None and engine.sink.over:
        return original(*args, **kwargs)
    recorder = engine.sink.recorder
    call = -1
    kept = True
    tensors: list[tuple[str, Tensor]] = []
    arguments: str | None = None
    tracked: gradients.Edges = []
    with_gradients = engine.training.with_gradients
    local.opaque += 1
    try:
        tensors, arguments = split_call(args, kwargs)
        stack = engine.stack_number(2, frame) if engine.stacks_on else None
        mode = frame.mode if frame is not None else engine.training.mode
        call = engine.add_call(
            "api", name, None, mode, frame, opaque=opaque, stack=stack, arguments=arguments
        )
        if engine.scope is not None:
            kept = engine.in_scope(call)
        if kept and engine.inputs_on and engine.forward_on:
            for where, tensor in tensors:
                engine.tensor(call, "forward", where, tensor)
        if kept and engine.backward_on and with_gradients:
            tracked = gradients.edges(tensors)
    except Exception as error:
        engine.failed(name, error)
        call = -1
    try:
        result = original(*args, **kwargs)
    except BaseException:
        local.opaque -= 1
        raise
    try:
        usable = result is not NotImplemented and recorder is engine.sink.recorder and engine.sink.active
        if call >= 0 and kept and usable:
            results = [("output.0", args[0])] if name == _SETITEM else split_result(result)
            if engine.outputs_on and engine.forward_on:
                for where, tensor in results:
                    engine.tensor(call, "forward", where, tensor)
            if engine.labels is not None and with_gradients:
                engine.labels.note(name, tensors, arguments, results)
            if engine.overflow is not None and engine.overflow.pending == call:
                engine.overflow.keep(call, "forward", tensors, results)
            if engine.backward_on and with_gradients:
                gradients.at_api(engine, call, tracked, results)
    except Exception as error:
        engine.failed(name, error)
    finally:
        local.opaque -= 1
    if engine.scope is not None and call >= 0:
        engine.left_scope(call)
    return result
