"""Capture's own operations on tensors are seen by nobody: not by capture itself, and not by modes or tensor
classes of the program that count or rewrite what is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

_num_modes = torch._C._len_torch_dispatch_stack
_no_torch_function = torch._C.DisableTorchFunction


_launch: Callable[[], None] | None = None
"""what starts the summaries that were queued on devices; None where none ever is"""


class _Depth(threading.local):
    depth = 0

    def __init__(self) -> None:
        self.answers: dict[str, bool] = {}
        """what was asked since this thread's outermost ``quiet`` began"""


_local = _Depth()


def launches(launch: Callable[[], None] | None) -> None:
    """From now on ``launch`` runs whenever a thread leaves its outermost ``quiet``: the program goes on."""
    global _launch
    _launch = launch


def is_grouping() -> bool:
    """Whether this thread is in a ``quiet`` at whose end queued summaries are started."""
    return _local.depth > 0


def asked_once(name: str, ask: Callable[[], bool]) -> bool:
    """What a device answers, asked once in a thread's outermost ``quiet``, where the program stands still."""
    if not _local.depth:
        return ask()
    answers = _local.answers
    known = answers.get(name)
    if known is None:
        known = answers[name] = ask()
    return known


class _Grouped:
    """As ``quiet`` without it, and summaries are started where the outermost ends. A class: it begins and
    ends at every call, and a generator takes as long as all the rest."""

    __slots__ = ("_inner",)

    def __enter__(self) -> None:
        if _local.depth == 0:
            _local.answers.clear()
        _local.depth += 1
        self._inner = _silence() if _num_modes() else _no_torch_function()
        self._inner.__enter__()

    def __exit__(self, *error: object) -> None:
        depth = _local.depth
        try:
            if depth == 1 and _launch is not None:
                _launch()
        finally:
            _local.depth = depth - 1
            self._inner.__exit__(None, None, None)


def quiet() -> AbstractContextManager[object]:
    """A context for what capture does with tensors; cheap where the program has no dispatch mode in place."""
    if _launch is not None:
        return _Grouped()
    return _silence() if _num_modes() else _no_torch_function()


@contextmanager
def _silence() -> Iterator[None]:
    with _no_torch_function(), _disable_current_modes():
        yield
