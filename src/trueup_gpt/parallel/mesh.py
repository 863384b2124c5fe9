"""The processes as a mesh. Axes, slowest first: pp pipeline, edp and ep together data, cp context, tp tensor.

Experts are cut over ``ep``, a part of the data-parallel ranks: what is not an expert is replicated over it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trueup.errors import ConfigError
from trueup_gpt.config import Config, check_combinations, data_parallel_size

AXES = ("pp", "edp", "ep", "cp", "tp")
DATA = ("edp", "ep")
_GROUPS: tuple[tuple[str, ...], ...] = (
    *((axis,) for axis in AXES),
    DATA,
    ("edp", "ep", "cp"),
    ("edp", "ep", "cp", "tp"),
    ("edp", "cp"),
    ("edp", "cp", "tp"),
)
"""made at the start, by all processes in the same order"""
_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
_TIMEOUT = timedelta(minutes=30)


@dataclass(slots=True)
class Mesh:
    """Sizes of the axes, this process's place on them, and the groups along them."""

    sizes: dict[str, int]
    rank: int
    device: torch.device
    groups: dict[tuple[str, ...], ProcessGroup] = field(default_factory=dict)
    device_mesh: DeviceMesh | None = None

    def axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Those of ``axes`` that have more than one process, in the mesh's order."""
        return tuple(axis for axis in AXES if axis in axes and self.sizes[axis] > 1)

    def size(self, *axes: str) -> int:
        """Processes along these axes together."""
        return math.prod(self.sizes[axis] for axis in axes)

    def coordinate(self, *axes: str) -> int:
        """This process's number along these axes together."""
        return _coordinate(self.rank, self.sizes, axes)

    def group(self, *axes: str) -> ProcessGroup:
        """The process group; only where ``size(*axes)`` is above 1."""
        return self.groups[self.axes(axes)]

    def peers(self, axis: str) -> list[int]:
        """Global ranks along one axis through this process, in order."""
        stride = math.prod(self.sizes[other] for other in AXES[AXES.index(axis) + 1 :])
        first = self.rank - self.coordinate(axis) * stride
        return [first + number * stride for number in range(self.sizes[axis])]

    def __str__(self) -> str:
        """Such as ``dp 2 | pp 2 | tp 2``."""
        shown = [("dp", self.size(*DATA)), ("pp", self.sizes["pp"]), ("tp", self.sizes["tp"])]
        shown += [(axis, self.sizes[axis]) for axis in ("cp", "ep") if self.sizes[axis] > 1]
        return " | ".join(f"{name} {size}" for name, size in shown)


def _coordinate(rank: int, sizes: dict[str, int], axes: Sequence[str]) -> int:
    place, found = rank, {}
    for axis in reversed(AXES):
        place, found[axis] = divmod(place, sizes[axis])
    number = 0
    for axis in AXES:
        if axis in axes:
            number = number * sizes[axis] + found[axis]
    return number


def mesh_sizes(config: Config, world_size: int) -> dict[str, int]:
    """Processes along each axis.

    Raises:
        ConfigError: the configuration does not fit this number of processes.
    """
    check_combinations(config, world_size)
    parallel, dp = config.parallel, data_parallel_size(config, world_size)
    ep = parallel.expert_model_parallel_size
    return {
        "pp": parallel.pipeline_model_parallel_size,
        "edp": dp // ep,
        "ep": ep,
        "cp": parallel.context_parallel_size,
        "tp": parallel.tensor_model_parallel_size,
    }


def device_type() -> str:
    """``cuda``, ``npu`` where torch_npu is installed, else ``cpu``; TRUEUP_DEVICE chooses another."""
    chosen = os.environ.get("TRUEUP_DEVICE")
    if chosen:
        return chosen
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


def _device(kind: str) -> torch.device:
    """This process's device of that kind, made the current one."""
    if kind not in _BACKENDS:
        raise ConfigError(f"device {kind!r}: expected one of {', '.join(_BACKENDS)}")
    if kind == "cpu":
        return torch.device(kind)
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type != kind:
        there = "none" if found is None else found.type
        raise ConfigError(f"device {kind}: torch sees {there} here; cpu always goes")
    place = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
    if (place.index or 0) >= torch.accelerator.device_count():
        count = torch.accelerator.device_count()
        raise ConfigError(f"device {place}: this machine has {count}; start no more processes than that")
    torch.accelerator.set_device_index(place)
    return place


def start_mesh(config: Config, device: str | None = None) -> Mesh:
    """Join the other processes that torchrun started, and make the groups.

    Raises:
        ConfigError: the configuration does not fit this number of processes.
    """
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    sizes = mesh_sizes(config, world_size)
    place = _device(device or device_type())
    mesh = Mesh(sizes, rank, place)
    if world_size > 1:
        if not dist.is_initialized():
            dist.init_process_group(_BACKENDS[place.type], timeout=_TIMEOUT)
        _make_groups(mesh)
    return mesh


def _make_groups(mesh: Mesh) -> None:
    names = mesh.axes(AXES)
    made = init_device_mesh(mesh.device.type, tuple(mesh.sizes[name] for name in names), mesh_dim_names=names)
    mesh.device_mesh = made
    for axes in _GROUPS:
        present = mesh.axes(axes)
        if present and present not in mesh.groups:
            one = made[present[0]] if len(present) == 1 else made[present]._flatten("_".join(present))
            mesh.groups[present] = one.get_group()
