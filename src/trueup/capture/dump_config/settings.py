"""The shape of the file ``MINDSPORE_DUMP_CONFIG`` names: every key, with the values MindSpore 2.10 takes.

Learned from MindSpore's public documentation of its dump (r2.4 to r2.10) and from how its public source reads
the file.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr


def _no_other_type(value: object) -> object:
    """``true`` and ``1.0`` equal 1, and MindSpore stops at both."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("expected an integer")
    return value


_Number = BeforeValidator(_no_other_type)
Whole = Annotated[StrictInt, Field(ge=0)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="ignore")


class CommonSettings(_Settings):
    """``common_dump_settings``."""

    op_debug_mode: Annotated[Literal[0, 1, 2, 3, 4], _Number] = 0
    """0: operators; 3: only those that overflow; 4: only inputs of one that fails; 1 and 2 mean 3"""
    dump_mode: Annotated[Literal[0, 1, 2], _Number] = 0
    """0: all operators; 1: those in ``kernels``; 2: those that ``mindspore.set_dump`` marked"""
    path: StrictStr = ""
    """absolute; empty: ``$MS_DIAGNOSTIC_DATA_PATH/debug_dump``"""
    net_name: StrictStr = ""
    iteration: StrictStr = "all"
    saved_data: Literal["tensor", "statistic", "full"] = "tensor"
    input_output: Annotated[Literal[0, 1, 2], _Number] = 0
    """0: both; 1: inputs; 2: outputs"""
    kernels: list[StrictStr] = Field(default_factory=list)
    support_device: list[Whole] = Field(default_factory=list)
    statistic_category: list[StrictStr] | None = None
    file_format: Literal["npy", "bin"] | None = None
    """O2 only; MindSpore's default is ``bin``"""
    overflow_number: Whole | None = None
    """how many overflows to dump, 0 for all; only with ``op_debug_mode`` 3"""
    initial_iteration: Whole | None = None
    """number of the first iteration"""


class EndToEndSettings(_Settings):
    """``e2e_dump_settings``: of every level but O2, where it is left out."""

    enable: StrictBool | None = None
    """synchronous; without it Ascend dumps asynchronously"""
    trans_flag: StrictBool = True
    """host format"""
    stat_calc_mode: Literal["host", "device"] = "host"
    device_stat_precision_mode: Literal["high", "low"] | None = None
    sample_mode: Annotated[Literal[0, 1], _Number] | None = None
    """1: only head and tail of each tensor; Ascend O0 and O1"""
    sample_num: Annotated[StrictInt, Field(ge=1)] | None = None
    save_kernel_args: StrictBool | None = None
