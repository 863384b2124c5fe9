"""Starts the Triton kernel on a device, where triton has one."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from trueup.adapters.torch.device.launching import Launch, Room, Variant
from trueup.adapters.torch.memory import data_ptr, own_memory

_TRIED = ("cuda", "xpu", "npu")
"""kinds of devices that a Triton runs on: NVIDIA and AMD, Intel, Ascend (triton-ascend)"""


@functools.lru_cache(maxsize=8)
def launch_for(kind: str) -> Launch | None:
    """How the kernel starts on devices of a kind; None where triton is missing or does not reach them."""
    if kind not in _TRIED or find_spec("triton") is None:
        return None
    try:
        triton = importlib.import_module("triton")
        if not is_recent(triton.__version__):
            return None
        target = triton.runtime.driver.active.get_current_target()
    except Exception:  # triton raises what its drivers raise: no driver, no device, another version
        return None
    return None if target is None else Starter(tells_stream=kind == "cuda")


def is_recent(version: str) -> bool:
    """Whether a version of triton compiles the kernel: 3.2 does not; 3.4 is the oldest that is asked for."""
    return tuple(int(part) for part in version.split(".")[:2]) >= (3, 4)


Constants = tuple[int, bool, bool, int, int, int, bool]
"""a variant, and the ``TILE``, ``STEP`` and ``PAIRS`` it is compiled for"""


def _is_nvidia(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None


def _compares_pairs(device: torch.device) -> bool:
    """Whether it takes ``min.bf16x2``: from compute capability 8.0 on."""
    return _is_nvidia(device) and torch.cuda.get_device_capability(device) >= (8, 0)


class _Compiled(Protocol):
    """By a grid, what starts it."""

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]: ...


class Starter:
    """Starts the kernel, from the second time on by addresses and without what triton asks of the arguments
    of any kernel: whether one compiled for them exists. All addresses of our own are multiples of 16, so one
    does for a variant."""

    def __init__(self, *, tells_stream: bool = False) -> None:
        """``tells_stream``: the number of a ``Room``'s stream is triton's too, which need not ask for it."""
        self._tells_stream = tells_stream
        self._compiled: dict[tuple[Variant, torch.device], _Compiled] = {}
        self._started: dict[tuple[Variant, torch.device, int], tuple[Callable[..., None], Constants]] = {}

    def __call__(
        self, variant: Variant, num_programs: int, jobs: Tensor, pointer: int, row: int, room: Room
    ) -> None:
        """As ``Launch``."""
        known = self._started.get((variant, jobs.device, num_programs))
        if known is None:
            self._first(variant, num_programs, jobs, pointer, row, room)
            return
        start, constants = known
        stream = room.stream if self._tells_stream else None
        start(data_ptr(jobs), pointer, row, *room.addresses, *constants, stream=stream)

    def _first(
        self, variant: Variant, num_programs: int, jobs: Tensor, pointer: int, row: int, room: Room
    ) -> None:
        """Of a variant with so many programs."""
        from trueup.adapters.torch.device import kernel

        code, digest, sketch, walk = variant
        shape = kernel.shape_of(code, digest=digest, sketch=sketch, walk=walk)
        pairs = shape.pairs and _compares_pairs(jobs.device)
        of, constants = (variant, jobs.device), (*variant, shape.tile, shape.step, pairs)
        if of not in self._compiled:
            start = kernel.summarise[(num_programs,)]
            options = {"num_warps": shape.num_warps}
            if shape.max_registers is not None and _is_nvidia(jobs.device):
                options["maxnreg"] = shape.max_registers
            with own_memory():  # triton reads addresses through the watched attributes
                self._compiled[of] = start(jobs, pointer, row, *room.tensors, *constants, **options)
        else:
            start = self._compiled[of][(num_programs, 1, 1)]
            self._started[variant, jobs.device, num_programs] = start, constants
            start(data_ptr(jobs), pointer, row, *room.addresses, *constants)
