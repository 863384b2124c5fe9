"""``torch.compile`` leaves capture's own frames alone, as it leaves torch's.

What a program compiles with capture on is what it compiles without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

PACKAGE = "trueup"

_marked: dict[str, int] = {}
"""process-wide, as torch's marks are: modules of this package -> how many names they had"""


def skip_package() -> None:
    """Mark every function of this package as none to start compiling at; inlined into others they still are.

    What was marked before is not gone through again.

    Versions of torch that have no such mark compile them, which is slower and does no harm.
    """
    _name_methods()
    try:
        inner: Any = torch._C._dynamo.eval_frame
        action = inner._FrameAction
        strategy = inner._FrameExecStrategy(action.SKIP, action.DEFAULT)
        mark = inner.set_code_exec_strategy
    except AttributeError:
        return
    for code in set(_codes()):
        mark(code, strategy)


def _name_methods() -> None:
    """With a function mode in place torch 2.6 compiles ``x.split(...)`` to ``torch._tensor.split(x, ...)``,
    which is not there: the program would end. Not seen with 2.4, nor with 2.11."""
    if torch.__version__ < "2.11":
        for name, method in vars(torch.Tensor).items():
            if isinstance(method, FunctionType) and method.__module__ == "torch._tensor":
                vars(torch._tensor).setdefault(name, method)


def _codes() -> Iterator[CodeType]:
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        module = sys.modules.get(name)
        if module is not None and name.partition(".")[0] == PACKAGE:
            values = list(vars(module).values())
            if _marked.get(name) != len(values):
                _marked[name] = len(values)
                for value in values:
                    yield from _of(value, name)


def _of(value: object, module: str) -> Iterator[CodeType]:
    """Code of a function, of a class's methods and properties, and of all functions within them."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        for function in (value.fget, value.fset):
            yield from _of(function, module)
    elif isinstance(value, FunctionType) and value.__module__ == module:
        yield from _within(value.__code__)
    elif isinstance(value, type) and value.__module__ == module:
        for member in vars(value).values():
            yield from _of(member, module)


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)
