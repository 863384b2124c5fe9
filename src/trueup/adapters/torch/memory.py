"""Where a tensor's values lie, read without the program's watched attributes (``escapes``) taking notice."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_Tensor: Any = torch._C.TensorBase
_Storage: Any = torch._C.StorageBase

data_of: Any = _Tensor.data
"""descriptor of ``Tensor.data``"""
data_ptr = _Tensor.data_ptr
"""address of a tensor's first element"""
numpy_of = _Tensor.numpy
"""a CPU tensor of our own as an array over the same memory; of a program's tensor see ``bytes_of``"""
storage_of = _Tensor.untyped_storage
"""the storage a tensor lies in"""
storage_ptr = _Storage.data_ptr
"""address of a storage's first byte"""
Where = tuple[int, torch.Size, tuple[int, ...]]
"""address, shape and strides of a tensor"""


def where_is(tensor: torch.Tensor) -> Where:
    """Each asked once: asking costs as much as what is done with them."""
    return data_ptr(tensor), tensor.shape, tensor.stride()


weak_reference = _Storage._weak_ref
"""a number that tells whether a storage has been freed; free it with ``forget_reference``"""
expired = _Storage._expired
forget_reference = _Storage._free_weak_ref

in_transform = torch._C._functorch.is_functorch_wrapped_tensor
"""whether a function transform (vmap, grad) has wrapped it: it has no memory of its own then"""


class _OwnMemory(threading.local):
    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


_own_memory = _OwnMemory()


def own_memory() -> AbstractContextManager[None]:
    """What this thread does with memory is capture's own: a kernel's launcher asks for addresses through the
    watched attributes too."""
    return _own_memory


def is_own_memory() -> bool:
    """Whether this thread is in ``own_memory``."""
    return _own_memory.depth > 0


FREED = "its memory has been freed (a storage of no bytes)"


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether there is nothing to read where elements should be: FSDP frees weights it has taken apart so."""
    return tensor.layout is torch.strided and tensor.numel() > 0 and data_ptr(tensor) == 0


def bytes_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The memory of a contiguous CPU tensor, to read: as ``numpy()``, after which the program could no longer
    resize the tensor's storage."""
    return np.asarray(_Memory(tensor))


class _Memory:
    """Keeps a tensor as long as numpy looks at its memory."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        num_bytes = tensor.numel() * tensor.element_size()
        address = data_ptr(tensor) if num_bytes else 0
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (num_bytes,),
            "typestr": "|u1",
            "version": 3,
        }
