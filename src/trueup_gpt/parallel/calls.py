"""The calls that a row of the layout table means, and the wrapper that moves their tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TypeVar

from trueup import Placement
from trueup_gpt.parallel.layout import Call

ModuleT = TypeVar("ModuleT")
TensorT = TypeVar("TensorT")
ProcessesT = TypeVar("ProcessesT")


def matching(
    modules: Iterable[tuple[str, ModuleT]], pattern: str, *, forward: str
) -> Iterator[tuple[ModuleT, str]]:
    """Module and attribute for each call that fits: ``forward`` of a module, or the method it names.

    Args:
        modules: of the model, by name.
        pattern: of the call.
        forward: the method that the framework calls when a module is called.
    """
    head, dot, method = pattern.rpartition(".")
    for fqn, module in modules:
        if fnmatchcase(fqn, pattern):
            yield module, forward
        elif dot and fnmatchcase(fqn, head) and hasattr(type(module), method):
            yield module, method


def moved_around(
    inner: Callable[..., TensorT],
    call: Call,
    move: Callable[[TensorT, Placement, Placement, ProcessesT], TensorT],
    group: ProcessesT,
    kind: type[TensorT],
) -> Callable[..., TensorT]:
    """The function with its tensors, of this kind, moved before it and its output after it."""
    changes, output = call.inputs, call.output

    @functools.wraps(inner)
    def outer(*args: object, **kwargs: object) -> TensorT:
        given = [
            move(x, changes[number].have, changes[number].need, group)
            if number in changes and isinstance(x, kind)
            else x
            for number, x in enumerate(args)
        ]
        y = inner(*given, **kwargs)
        return y if output is None else move(y, output.have, output.need, group)

    return outer
