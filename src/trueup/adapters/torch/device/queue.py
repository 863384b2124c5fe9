"""Rows whose numbers are still on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trueup.adapters.base import Recorder
from trueup.adapters.placing import TensorPlace
from trueup.adapters.torch.device.chunks import BoxNumbers, Chunks
from trueup.adapters.torch.device.launching import Jobs
from trueup.adapters.torch.device.parts import EXTREMES, Whole, summaries_from_parts
from trueup.adapters.torch.device.recording import asks_whether_recorded
from trueup.adapters.torch.device.transfer import parts_from_numbers
from trueup.adapters.torch.device.triton_launch import launch_for
from trueup.adapters.torch.device.values import Values
from trueup.adapters.torch.memory import Where
from trueup.adapters.torch.quiet import is_grouping
from trueup.numerics.dtypes import REAL_PART
from trueup.numerics.summary import HAS_SKETCH
from trueup.types.arrays import Array
from trueup.types.pieces import Pieces


@dataclass(frozen=True, slots=True)
class Arrived:
    """A step's parts on the host."""

    parts: Array | None
    lost: frozenset[int] = frozenset()
    """numbers of those that could not be computed"""
    error: Exception | None = None
    """why, where it was not for lack of memory"""


Taken = Callable[[], Arrived]
"""waits for a step's parts"""


Noted = dict[str, Any]
"""scalars of a step, some of them tensors, or lists and tuples with tensors in them"""


class Path(Protocol):
    """How the tensors of one device are summarised."""

    name: str

    def add(self, tensor: Tensor, where: Where, dtype: str, want: int, place: TensorPlace | None) -> int:
        """Queue a tensor; how many parts it has."""

    @property
    def launch(self) -> Callable[[], None]:
        """What was queued by this thread may change from now on."""

    def values_of(self, tensor: Tensor) -> Pieces | None:
        """Its values on their way to the host; None where whoever asks must wait for them."""

    def number(self, value: Tensor) -> Callable[[], Tensor]:
        """A number on its way to the host; what returns waits for it."""

    def taken(self) -> Taken:
        """The step is over: its parts, which are waited for later; begin the next."""


class Operations:
    """By torch operations."""

    def __init__(self, device: torch.device) -> None:
        self._chunks = Chunks(device)
        self._numbers: list[BoxNumbers] = []
        self.name = "torch operations" if self._chunks.wide else "torch operations without float64"

    def add(self, tensor: Tensor, where: Where, dtype: str, want: int, place: TensorPlace | None) -> int:
        """As ``Path.add``; the operations start at once."""
        numbers = self._chunks.numbers_of(tensor.detach(), dtype, want, place)
        self._numbers += numbers
        return len(numbers)

    def launch(self) -> None:
        """Nothing waits."""

    def values_of(self, tensor: Tensor) -> None:
        """As ``Path.values_of``."""

    def number(self, value: Tensor) -> Callable[[], Tensor]:
        """As ``Path.number``."""
        return value.cpu

    def taken(self) -> Taken:
        """As ``Path.taken``."""
        numbers, wide = self._numbers, self._chunks.wide
        self._numbers = []
        return lambda: Arrived(parts_from_numbers(numbers, wide=wide) if numbers else None)


class Kernel:
    """By the Triton kernel."""

    name = "triton"

    def __init__(self, jobs: Jobs, values: Values) -> None:
        self._jobs = jobs
        self._values = values
        self._sketch_only: list[int] = []
        self.launch = jobs.launch
        """as ``Path.launch``"""

    def add(self, tensor: Tensor, where: Where, dtype: str, want: int, place: TensorPlace | None) -> int:
        """As ``Path.add``; what is queued is read at the next ``launch``."""
        if place is None or not want & HAS_SKETCH:
            self._jobs.add(tensor, where, dtype, want)
            return 1
        found = self._jobs.add_placed(tensor.detach(), dtype, want, place)
        self._sketch_only += [part for part, only in found if only]
        return len(found)

    def values_of(self, tensor: Tensor) -> Pieces:
        """As ``Path.values_of``."""
        return self._values.of(tensor)

    def number(self, value: Tensor) -> Callable[[], Tensor]:
        """As ``Path.number``."""
        copied = self._jobs.copies([value])
        return lambda: copied()[0]

    def scalars(self, noted: Noted) -> Callable[[Noted], Noted]:
        """Start copies of the numbers that lie on the device; what returns waits, and puts them in place."""
        tensors = {id(v): v for v in _flat(noted) if isinstance(v, Tensor) and self._jobs.holds(v)}
        copied = self._jobs.copies(list(tensors.values())) if tensors else None

        def arrived(found: Noted) -> Noted:
            if copied is None:
                return found
            hosts = dict(zip(tensors, copied(), strict=True))
            return {name: _replaced(value, hosts) for name, value in found.items()}

        return arrived

    def taken(self) -> Taken:
        """As ``Path.taken``."""
        self._jobs.send()
        parts, only = self._jobs.taken(), self._sketch_only
        lost, error = frozenset(self._jobs.lost), self._jobs.error
        self._jobs.begin()
        self._sketch_only = []

        def with_neutral() -> Arrived:
            found = parts()
            neutral = np.zeros((), found.dtype)
            for name, none in zip(EXTREMES, (np.inf, -np.inf, np.inf), strict=True):
                neutral[name] = none
            for part in only:
                sketch = found[part]["sketch"].copy()
                found[part] = neutral
                found[part]["sketch"] = sketch
            return Arrived(found, lost, error)

        return with_neutral


def _flat(noted: Noted) -> Iterator[object]:
    todo = list(noted.values())
    while todo:
        value = todo.pop()
        if isinstance(value, (list, tuple)):
            todo += value
        else:
            yield value


def _replaced(value: object, hosts: Mapping[int, Tensor]) -> object:
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(one, hosts) for one in value)
    return hosts.get(id(value), value)


def path_for(device: torch.device) -> Path:
    """The kernel where one runs on the device, else torch operations."""
    launch = launch_for(device.type)
    return Operations(device) if launch is None else Kernel(Jobs(device, launch), Values(device))


@dataclass(frozen=True, slots=True)
class QueuedStep:
    """The rows of a step on their way to the host."""

    wholes: list[tuple[NDArray[np.int64], Taken]]
    """of each device: ``Whole`` of every tensor"""

    def fill(self, recorder: Recorder) -> tuple[int, list[Exception]]:
        """Wait, and write the rows; how many were lost, which keep no numbers, and errors that explain it."""
        num_lost, errors = 0, []
        for wholes, taken in self.wholes:
            arrived = taken()
            errors += [] if arrived.error is None else [arrived.error]
            summaries = summaries_from_parts(arrived.parts, wholes)
            if arrived.lost:
                num_parts = wholes[:, -1]
                of_part = np.repeat(np.arange(len(wholes)), num_parts)
                lost = np.unique(of_part[list(arrived.lost)])
                summaries["flags"][lost] = 0
                num_lost += len(lost)
            recorder.put(wholes[:, 0], summaries)
        return num_lost, errors


class Device:
    """The rows of one step on one device."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path, self.name = path, str(device)
        self.is_recorded = asks_whether_recorded(device)
        self.wholes: list[int] = []
        """cells of ``Whole`` of every tensor, side by side"""

    def take(self) -> tuple[NDArray[np.int64], Taken]:
        """What was queued, on its way to the host."""
        wholes, self.wholes = self.wholes, []
        return np.array(wholes, np.int64).reshape(-1, len(Whole._fields)), self.path.taken()


class Queue:
    """The rows of one step, by device."""

    def __init__(self, path_for: Callable[[torch.device], Path] = path_for) -> None:
        self._path_for = path_for
        self._devices: dict[torch.device, Device] = {}

    def add(
        self,
        recorder: Recorder,
        device: Device,
        tensor: Tensor,
        where: Where,
        dtype: str,
        placement: str | None,
        want: int,
        place: TensorPlace | None = None,
    ) -> int:
        """Reserve a row and queue its computation. ``device``: that of the tensor (``of``)."""
        numel, num_parts = tensor.numel(), 0
        if numel:
            num_parts = device.path.add(tensor, where, dtype, want, place)
            if not is_grouping():
                device.path.launch()
        row = recorder.keep(0, dtype, where[1], device.name, placement)
        num_real = 2 * numel if dtype in REAL_PART else numel
        device.wholes.extend((row, numel, num_real, want, num_parts))
        return row

    def of(self, tensor: Tensor) -> Device:
        """That of a tensor."""
        device = tensor.device
        return self._devices.get(device) or self._made(device)

    def _made(self, device: torch.device) -> Device:
        made = self._devices[device] = Device(self._path_for(device), device)
        return made

    def values_of(self, tensor: Tensor) -> Pieces | None:
        """As ``Path.values_of``."""
        return self.of(tensor).path.values_of(tensor)

    def number(self, value: Tensor) -> Callable[[], Tensor]:
        """As ``Path.number``."""
        return self.of(value).path.number(value)

    def launch(self) -> None:
        """The program goes on: what was queued may change."""
        for device in self._devices.values():
            device.path.launch()

    def take(self) -> QueuedStep:
        """What was queued in the step, on its way to the host."""
        return QueuedStep([device.take() for device in self._devices.values() if device.wholes])

    def lets_the_host_go_on(self, noted: Noted) -> bool:
        """Whether there are devices, those of noted scalars among them, and the host need wait for none."""
        for value in _flat(noted):
            if isinstance(value, Tensor) and not (value.is_cpu or value.is_meta):
                self.of(value)
        devices = self._devices.values()
        return bool(devices) and all(isinstance(device.path, Kernel) for device in devices)

    def scalars(self, noted: Noted) -> Callable[[], Noted]:
        """Noted scalars, as a function that waits for those on devices."""
        copies = [
            device.path.scalars(noted) for device in self._devices.values() if isinstance(device.path, Kernel)
        ]

        def arrived() -> Noted:
            found = noted
            for copied in copies:
                found = copied(found)
            return found

        return arrived

    def forget(self) -> None:
        """The step is over: what was not taken is not wanted."""
        self.take()

    def paths(self) -> dict[str, str]:
        """What summarised the tensors of each device."""
        return {device.name: device.path.name for device in self._devices.values()}
