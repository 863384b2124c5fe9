"""Starts the Triton kernel on a device, where triton has one."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from trueup.adapters.torch.device.launching import Launch, Variant
from trueup.adapters.torch.device.tables import Tables
from trueup.adapters.torch.memory import data_ptr

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
    return None if target is None else Starter()


def is_recent(version: str) -> bool:
    """Whether a version of triton compiles the kernel: 3.2 does not; 3.4 is the oldest that is asked for."""
    return tuple(int(part) for part in version.split(".")[:2]) >= (3, 4)


class _Compiled(Protocol):
    """By a grid, what starts it."""

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]: ...


class Starter:
    """Starts the kernel, from the second time on by addresses and without what triton asks of the arguments
    of any kernel: whether one compiled for them exists. All addresses are multiples of 16, so one does for
    a variant."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[Variant, torch.device], _Compiled] = {}

    def __call__(
        self,
        variant: Variant,
        num_programs: int,
        job_of: Tensor,
        jobs: Tensor,
        rows: Tensor,
        partials: Tensor,
        counters: Tensor,
        tables: Tables,
    ) -> None:
        """As ``Launch``."""
        from trueup.adapters.torch.device import kernel

        tensors = (
            job_of, jobs, rows, partials, counters, tables.powers, tables.blocks, tables.signs, tables.float8,
        )  # fmt: skip
        key = variant, rows.device
        compiled = self._compiled.get(key)
        if compiled is None:
            start = kernel.summarise[(num_programs,)]
            warps = kernel.warps_of(digest=variant[1], sketch=variant[2])
            self._compiled[key] = start(*tensors, *variant, kernel.LANES, num_warps=warps)
        else:
            compiled[(num_programs, 1, 1)](*map(data_ptr, tensors), *variant, kernel.LANES)
