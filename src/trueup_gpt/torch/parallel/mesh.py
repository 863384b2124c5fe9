"""The mesh of torch's processes: their groups and devices."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trueup.errors import ConfigError
from trueup_gpt.config import Config
from trueup_gpt.parallel import mesh as shared
from trueup_gpt.parallel.mesh import AXES, GROUPS, mesh_sizes
from trueup_gpt.session import device_of

_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
_TIMEOUT = timedelta(minutes=30)


@dataclass(slots=True)
class Mesh(shared.Mesh):
    """With this process's device, and the groups along the axes."""

    device: torch.device
    groups: dict[tuple[str, ...], ProcessGroup] = field(default_factory=dict)
    device_mesh: DeviceMesh | None = None

    def group(self, *axes: str) -> ProcessGroup:
        """The process group; only where ``size(*axes)`` is above 1."""
        return self.groups[self.axes(axes)]


def device_type() -> str:
    """``cuda``, ``npu`` where torch_npu is installed, else ``cpu``."""
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
    place = _device(device_of(config, device) or device_type())
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
    for axes in GROUPS:
        present = mesh.axes(axes)
        if present and present not in mesh.groups:
            one = made[present[0]] if len(present) == 1 else made[present]._flatten("_".join(present))
            mesh.groups[present] = one.get_group()
