"""Dtypes by name, and numbers in the dtype of a tensor."""

from __future__ import annotations

import mindspore
from mindspore import Tensor


def dtype_named(name: str) -> mindspore.Type:
    """MindSpore's dtype of that name."""
    return getattr(mindspore, name)


def wide(dtype: mindspore.Type) -> mindspore.Type:
    """The dtype, float32 in place of a half one."""
    return mindspore.float64 if dtype == mindspore.float64 else mindspore.float32


def wider(first: mindspore.Type, second: mindspore.Type) -> mindspore.Type:
    """The one that holds the values of both."""
    if first == second:
        return first
    return mindspore.float64 if mindspore.float64 in (first, second) else mindspore.float32


def number(value: float, like: Tensor) -> Tensor | float:
    """A number that meets a float64 tensor in an operation: MindSpore rounds a plain one to float32 first."""
    return Tensor(value, like.dtype) if like.dtype == mindspore.float64 else value
