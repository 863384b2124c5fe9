"""Capture's own operations on tensors are seen by nobody: not by capture itself, and not by modes or tensor
classes of the program that count or rewrite what is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

_num_modes = torch._C._len_torch_dispatch_stack
_no_torch_function = torch._C.DisableTorchFunction


def quiet() -> AbstractContextManager[object]:
    """A context for what capture does with tensors; cheap where the program has no dispatch mode in place."""
    return _silence() if _num_modes() else _no_torch_function()


@contextmanager
def _silence() -> Iterator[None]:
    with _no_torch_function(), _disable_current_modes():
        yield
