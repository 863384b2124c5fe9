"""Lets Megatron-core run on a CPU: what it asks of the device is given by the CPU. Import it before Megatron.

Megatron-core writes ``device='cuda'`` and ``torch.cuda.current_device()`` in its code, keeps dropout streams
in the device's generator, and tells weights apart by ``tensor.type()``. Of its arithmetic nothing is touched.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return make


def _of_device(named: Callable[..., Any]) -> Callable[..., Any]:
    def type_of(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        said = named(self, *args, **kwargs)
        return said.replace("torch.", "torch.cuda.", 1) if isinstance(said, str) else said

    return type_of


for _name in ("empty", "zeros", "ones", "full", "tensor", "arange"):
    setattr(torch, _name, _on_cpu(getattr(torch, _name)))
torch.Tensor.type = _of_device(torch.Tensor.type)
torch.Tensor.cuda = lambda self, *args, **kwargs: self
torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.synchronize = torch.cuda.empty_cache = lambda *args, **kwargs: None
torch.cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
torch.cuda.manual_seed = torch.manual_seed

from megatron.core.tensor_parallel import random as _random  # noqa: E402

_random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
_random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)

from megatron.core.transformer import torch_norm as _norm  # noqa: E402
from megatron.core.transformer.moe import moe_utils as _moe_utils  # noqa: E402

if not hasattr(_moe_utils, "te_general_gemm"):  # 0.16.1 asks for it where Transformer Engine is not there
    _moe_utils.te_general_gemm = None


class _Stream:
    """A stream of a device that has none: work is done when it is asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_stream(self, other: object) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: object = None) -> _Stream:
        return self

    def wait_event(self, event: object) -> None: ...


torch.cuda.Stream = _Stream
torch.cuda.current_stream = torch.cuda.default_stream = _Stream
torch.cuda.stream = lambda stream: contextlib.nullcontext()


def _make_norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> torch.nn.Module:
    """Apex's norm marks its weights for sequence parallelism; torch's, which stands in, has no marks."""
    kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
    norm = kind(hidden_size, eps=eps)
    for weight in norm.parameters():
        weight.sequence_parallel = config.sequence_parallel
    return norm


_norm.WrappedTorchNorm.__new__ = _make_norm
