"""Values on their way to the host: through a few megabytes on the device and a ring of pinned host memory.

Each piece is copied into a buffer on the device by the stream that runs the program, so it is what the tensor
held at that moment whatever is written or freed afterwards; a stream of its own takes it from there to the
host while the program goes on. Nothing waits, but for room in the ring: a disk that is slower than the
program slows it, one that takes nothing any more does not stop it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueup.adapters.torch.device.launching import pinned_bytes, wait_for
from trueup.adapters.torch.memory import numpy_of, own_memory
from trueup.types.pieces import PendingBytes, await_disk

PIECE_BYTES = 1 << 23
NUM_BUFFERS = 4
"""pieces on the device at once: 32 MB"""
RING_BYTES = 1 << 28
"""pinned host memory: values that are not on disk yet"""
_ALIGNED = 64


class Ring:
    """Memory handed out in order and given back in any order."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._head = 0
        self._taken: deque[list[int]] = deque()
        """start, end and whether it was given back"""
        self._room = threading.Condition()
        self.waited_seconds = 0.0

    def take(self, num_bytes: int) -> int:
        """Where so many bytes begin; waits until they are free.

        Raises:
            OSError: nothing was given back for ``STUCK_SECONDS``.
        """
        size = max(1, -(-num_bytes // _ALIGNED)) * _ALIGNED
        with self._room:
            begin = time.monotonic()
            while (start := self._place(size)) is None:
                await_disk(self._room)
            self.waited_seconds += time.monotonic() - begin
            self._taken.append([start, start + size, 0])
            self._head = start + size
        return start

    def give(self, start: int) -> None:
        """The bytes that begin here are free."""
        with self._room:
            for one in self._taken:
                if one[0] == start:
                    one[2] = 1
                    break
            while self._taken and self._taken[0][2]:
                self._taken.popleft()
            self._room.notify_all()

    def _place(self, size: int) -> int | None:
        if not self._taken:
            return 0
        tail, head = self._taken[0][0], self._head
        if head <= tail:  # the rest, in front of what is still taken, lies behind it
            return head if head + size <= tail else None
        if head + size <= self._num_bytes:
            return head
        return 0 if size <= tail else None


@dataclass(slots=True)
class _Buffer:
    """Memory on the device for one piece."""

    memory: Tensor
    read: Any
    """after which it may be written again"""


@dataclass(slots=True)
class _Sent:
    """A piece on its way."""

    host: Tensor
    event: Any
    give: Callable[[], None]
    nbytes: int

    def arrived(self) -> memoryview:
        """As ``PendingBytes.arrived``."""
        wait_for(self.event)
        return memoryview(numpy_of(self.host))

    def release(self) -> None:
        """As ``PendingBytes.release``."""
        self.give()


@dataclass(frozen=True, slots=True)
class _Pieces:
    """As ``types.pieces.Pieces``."""

    tensor: Tensor
    nbytes: int
    ring: Ring
    send: Callable[[Tensor], PendingBytes]

    @property
    def waited_seconds(self) -> float:
        """As ``types.pieces.Pieces``."""
        return self.ring.waited_seconds

    def __iter__(self) -> Iterator[PendingBytes]:
        return map(self.send, split(self.tensor, PIECE_BYTES))


class Values:
    """Of one device."""

    def __init__(self, device: torch.device, pinned: Callable[[int], Tensor] = pinned_bytes) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._pinned = pinned
        self._ring = Ring(RING_BYTES)
        self._host: Tensor | None = None
        self._buffers: list[_Buffer] = []
        self._next = 0
        self._lock = threading.Lock()

    def of(self, tensor: Tensor) -> _Pieces:
        """Its pieces; each is sent when it is asked for. ``tensor`` is outside any graph."""
        return _Pieces(tensor, tensor.numel() * tensor.element_size(), self._ring, self._send)

    def _send(self, part: Tensor) -> PendingBytes:
        num_bytes = part.numel() * part.element_size()
        start = self._ring.take(num_bytes)
        try:
            with self._lock, own_memory(), torch.no_grad(), self._module.device(self._device):
                host = self._memory()[start : start + num_bytes]
                return _Sent(host, self._copied(part, host), lambda: self._ring.give(start), num_bytes)
        except BaseException:
            self._ring.give(start)
            raise

    def _memory(self) -> Tensor:
        if self._host is None:
            buffers = [
                torch.empty(PIECE_BYTES, dtype=torch.uint8, device=self._device) for _ in range(NUM_BUFFERS)
            ]
            made = self._event(self._module.current_stream(self._device))
            self._buffers = [_Buffer(one, made) for one in buffers]
            self._stream = self._module.Stream(self._device)
            self._host = self._pinned(RING_BYTES)
        return self._host

    def _copied(self, part: Tensor, host: Tensor) -> Any:
        """Start the copies; the event after which ``host`` holds the part."""
        here, buffer = self._module.current_stream(self._device), self._buffers[self._next]
        self._next = (self._next + 1) % NUM_BUFFERS
        there = buffer.memory[: len(host)]
        here.wait_event(buffer.read)
        there.view(part.dtype).view(part.shape).copy_(part)
        self._stream.wait_event(self._event(here))
        with self._module.stream(self._stream):
            host.copy_(there, non_blocking=True)
        buffer.read = self._event(self._stream)
        return buffer.read

    def _event(self, stream: Any) -> Any:
        event = self._module.Event()
        event.record(stream)
        return event


def split(tensor: Tensor, most: int) -> Iterator[Tensor]:
    """Parts of at most so many bytes, in row-major order."""
    num_bytes = tensor.numel() * tensor.element_size()
    dim = next((dim for dim, size in enumerate(tensor.shape) if size > 1), None)
    if num_bytes <= most or dim is None:
        yield tensor
        return
    rows = max(1, most * tensor.shape[dim] // num_bytes)
    for start in range(0, tensor.shape[dim], rows):
        yield from split(tensor.narrow(dim, start, min(rows, tensor.shape[dim] - start)), most)
