"""The mesh of MindSpore's processes: their groups and devices."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, field

import mindspore
from mindspore.communication import GlobalComm, create_group, init
from mindspore.mint.distributed import distributed

from trueup.errors import ConfigError
from trueup_gpt.config import Config
from trueup_gpt.launching import place_in_world
from trueup_gpt.parallel import mesh as shared
from trueup_gpt.parallel.mesh import AXES, GROUPS, mesh_sizes
from trueup_gpt.session import device_of

_TARGETS = {"cpu": "CPU", "npu": "Ascend"}
_BACKENDS = {"cpu": "mccl", "npu": "hccl"}


@dataclass(frozen=True, slots=True)
class Group:
    """Some of the processes, in order."""

    name: str
    ranks: tuple[int, ...]
    rank: int
    """of this process among them"""

    @property
    def size(self) -> int:
        """How many."""
        return len(self.ranks)


@dataclass(slots=True)
class Mesh(shared.Mesh):
    """With this process's device, and the groups along the axes."""

    device: str
    groups: dict[tuple[str, ...], Group] = field(default_factory=dict)

    def group(self, *axes: str) -> Group:
        """The process group; only where ``size(*axes)`` is above 1."""
        return self.groups[self.axes(axes)]


def device_type() -> str:
    """``npu`` where MindSpore sees an Ascend device, else ``cpu``."""
    return "npu" if _has_ascend() else "cpu"


def _device(kind: str) -> str:
    """This process's device, made MindSpore's target."""
    if kind not in _TARGETS:
        raise ConfigError(
            f"device {kind!r}: expected one of {', '.join(_TARGETS)} with --framework mindspore"
        )
    if kind == "npu" and not _has_ascend():
        raise ConfigError("device npu: MindSpore sees no Ascend device here; cpu always goes")
    if GlobalComm.INITED:
        return kind  # the target is settled once processes have joined
    place = int(os.environ.get("DEVICE_ID", "0")) if kind == "npu" else None
    mindspore.set_device(_TARGETS[kind], place)
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    if kind == "cpu":
        mindspore.runtime.launch_blocking()  # errors where they happen; on a CPU it is faster as well
    return kind


def _has_ascend() -> bool:
    return bool(mindspore.device_context.ascend.is_available())


def start_mesh(config: Config, device: str | None = None) -> Mesh:
    """Join the other processes that msrun started, and make the groups.

    Raises:
        ConfigError: the configuration does not fit this number of processes.
    """
    rank, world_size = place_in_world(os.environ)
    sizes = mesh_sizes(config, world_size)
    mesh = Mesh(sizes, rank, _device(device_of(config, device) or device_type()))
    if world_size > 1:
        if not GlobalComm.INITED:
            init(_BACKENDS[mesh.device])
            _thaw_defaults()
        _make_groups(mesh)
    return mesh


def _thaw_defaults() -> None:
    """The world's group has its name only after ``init``; send and recv kept the one from their import."""
    for function in (distributed.get_cache_group_rank, distributed.get_cache_group_size):
        inspect.unwrap(function).__defaults__ = (GlobalComm.WORLD_COMM_GROUP,)


def _make_groups(mesh: Mesh) -> None:
    """Each process makes those that it is in: MindSpore wants no others to call."""
    for axes in (*GROUPS, AXES):
        present = mesh.axes(axes)
        if present and present not in mesh.groups:
            mesh.groups[present] = group_of(mesh, mesh.peers(*present))


_MADE: dict[tuple[int, ...], str] = {}
"""ranks -> name: a group is made once in a process"""


def group_of(mesh: Mesh, ranks: list[int]) -> Group:
    """The group of these processes, of which this is one."""
    members = tuple(ranks)
    if members not in _MADE:
        whole = len(members) == mesh.size(*AXES)
        _MADE[members] = GlobalComm.WORLD_COMM_GROUP if whole else "trueup_" + "_".join(map(str, members))
        if not whole:
            create_group(_MADE[members], list(members))
    return Group(_MADE[members], members, members.index(mesh.rank))
