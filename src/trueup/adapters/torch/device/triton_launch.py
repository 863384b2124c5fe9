"""Starts the Triton kernel on a device, where triton has one."""

from __future__ import annotations

import functools
import importlib
from importlib.util import find_spec

import torch
from torch import Tensor

from trueup.adapters.torch.device.launching import Launch, Variant
from trueup.adapters.torch.device.tables import Tables
from trueup.numerics.dtypes import DTYPES

_TRIED = ("cuda", "xpu", "npu")
"""kinds of devices that a Triton runs on: NVIDIA and AMD, Intel, Ascend (triton-ascend)"""
_NAMES = {entry.code: name for name, entry in DTYPES.items()}


@functools.lru_cache(maxsize=8)
def launch_for(kind: str) -> Launch | None:
    """How the kernel starts on devices of a kind; None where triton is missing or does not reach them."""
    if kind not in _TRIED or find_spec("triton") is None:
        return None
    try:
        target = importlib.import_module("triton").runtime.driver.active.get_current_target()
    except Exception:  # triton raises what its drivers raise: no driver, no device, another version
        return None
    return None if target is None else _launch


def _launch(
    variant: Variant,
    num_programs: int,
    job_of: Tensor,
    jobs: Tensor,
    rows: Tensor,
    partials: Tensor,
    counters: Tensor,
    tables: Tables,
) -> None:
    from trueup.adapters.torch.device import kernel

    code, digest, sketch, offsets = variant
    most = most_blocks(rows.device.index or 0) if rows.is_cuda else 4
    kernel.summarise[(num_programs,)](
        job_of, jobs, rows, partials, counters, tables.powers, tables.blocks, tables.signs, tables.float8,
        CODE=code, DIGEST=digest, SKETCH=sketch, OFFSETS=offsets, BLOCKS=kernel.blocks_of(_NAMES[code], most),
        LANES=kernel.LANES, num_warps=kernel.warps_of(_NAMES[code], most, sketch=sketch),
    )  # fmt: skip


@functools.lru_cache(maxsize=64)
def most_blocks(number: int) -> int:
    """``most`` of ``kernel.blocks_of`` on a CUDA device."""
    return 4 if torch.version.hip or torch.cuda.get_device_capability(number)[0] >= 9 else 2
