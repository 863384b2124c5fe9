"""Memory that escapes: a tensor written through ``.data``, ``numpy()``, a pointer or its storage keeps its
version.

A summary remembered for that version would be stale, so these few attributes of ``torch.Tensor`` and of
storages tell the summariser whose memory the program has taken hold of. They are looked at when they are
used and cost nothing else. Capture's own code reads through the plain functions below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from trueup.adapters.torch.engine import Engine
from trueup.adapters.torch.memory import data_of, is_own_memory
from trueup.adapters.torch.quiet import quiet

_is_compiling = torch.compiler.is_compiling

OF_TENSORS = ("numpy", "__array__", "__dlpack__", "data_ptr", "set_", "apply_", "map_")
OF_STORAGES = ("__setitem__", "copy_", "fill_", "data_ptr", "resize_", "_swap_data_ptr_")
"""``Tensor.untyped_storage`` itself stays as it is: compiled code may call it, and only what is done with the
storage matters"""

_engine: Engine | None = None


def install(engine: Engine) -> None:
    """Put the watched attributes in place, or hand those in place another engine."""
    global _engine
    first = _engine is None
    _engine = engine
    if not first:
        return
    for kind, names in ((torch.Tensor, OF_TENSORS), (torch.UntypedStorage, OF_STORAGES)):
        for name in names:
            if hasattr(kind, name):  # older versions of torch lack some
                setattr(kind, name, _watched(getattr(kind, name)))
    torch.Tensor.data = property(_get_data, _set_data, doc=data_of.__doc__)  # type: ignore[assignment]


def _escaped(holder: object) -> None:
    engine = _engine
    if engine is None or not engine.sink.active or engine.in_optimizer or engine.local.opaque:
        return
    try:
        if is_own_memory():
            return
        if isinstance(holder, torch.TypedStorage):
            holder = holder._untyped_storage
        if not isinstance(holder, (torch.Tensor, torch.UntypedStorage)):
            return
        with engine.lock, quiet():
            engine.summariser.distrust(holder)
    except RuntimeError:
        return  # no address, and so no summary that could be stale
    except Exception as error:
        engine.failed("memory that escapes", error)


def _watched(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def escaping(self: object, *args: object, **kwargs: object) -> object:
        if not _is_compiling():
            for holder in (self, *args[:1]):  # ``set_`` and ``_swap_data_ptr_`` share the memory of another
                _escaped(holder)
        return original(self, *args, **kwargs)

    return escaping


def _get_data(self: torch.Tensor) -> torch.Tensor:
    if not _is_compiling():
        _escaped(self)
    return data_of.__get__(self)


def _set_data(self: torch.Tensor, value: torch.Tensor) -> None:
    if not _is_compiling():
        _escaped(self)
    data_of.__set__(self, value)
