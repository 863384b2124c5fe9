"""Where a tensor's values lie, read without the program's watched attributes (``escapes``) taking notice."""

from __future__ import annotations

from typing import Any

import torch

_Tensor: Any = torch._C.TensorBase
_Storage: Any = torch._C.StorageBase

data_of: Any = _Tensor.data
"""descriptor of ``Tensor.data``"""
data_ptr = _Tensor.data_ptr
"""address of a tensor's first element"""
numpy_of = _Tensor.numpy
"""a CPU tensor as an array over the same memory"""
storage_of = _Tensor.untyped_storage
"""the storage a tensor lies in"""
storage_ptr = _Storage.data_ptr
"""address of a storage's first byte"""
weak_reference = _Storage._weak_ref
"""a number that tells whether a storage has been freed; free it with ``forget_reference``"""
expired = _Storage._expired
forget_reference = _Storage._free_weak_ref
