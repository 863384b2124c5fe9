"""The kernel's jobs of one device: collected while capture looks at tensors, launched together, brought to
the host on a stream of their own.

Nothing here waits for the device. Results stay in blocks of rows; a block that is full, or the step's last
one, is copied into pinned memory on the copy stream, after every stream that wrote to it. Whoever writes the
step waits.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trueup.adapters.placing import Place
from trueup.adapters.torch.device.parts import PART_DTYPE, PART_WORDS
from trueup.adapters.torch.device.plan import (
    AT_LAUNCH,
    OFFSETS,
    WEIGHTS,
    Plan,
    dims_of,
    plan_of,
)
from trueup.adapters.torch.device.recording import RECORDING
from trueup.adapters.torch.device.tables import Tables
from trueup.adapters.torch.memory import data_ptr, numpy_of, ours
from trueup.numerics.dtypes import DTYPES, REAL_PART
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH
from trueup.types.arrays import Array

BLOCK_ROWS = 4096
"""rows of a block, 2.4 MB: a full one is sent to the host while the step goes on"""
MAX_LAUNCH_PROGRAMS = 4096
"""programs of a launch; there is room for what so many leave behind, 2.4 MB a stream"""
PAGE_WORDS = 1 << 16
"""words of launches that share a piece of pinned memory, half a megabyte"""
MAX_WAIT_SECONDS = 600.0
"""until a device that does not deliver is given up; the thread that trains does not wait meanwhile"""
MAX_NUMBERS = 1 << 14
"""of a noted tensor that is brought to the host"""
MAX_TEMPLATES = 4096
"""kinds of tensors whose jobs are remembered"""

Variant = tuple[int, bool, bool, bool]
"""CODE, DIGEST, SKETCH, OFFSETS of the kernel"""


class Launch(Protocol):
    """Starts the kernel on the current stream."""

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
    ) -> None: ...


@dataclass(slots=True)
class _Job:
    """One reading of one tensor, or of part of it, that has not been launched."""

    plan: Plan
    words: NDArray[np.int64]
    pointer: int
    tensor: Tensor
    """kept until the launch"""
    part: int


@dataclass(slots=True)
class _Block:
    """Rows on the device, and whose streams wrote to them."""

    rows: Tensor
    ready: Any
    """after which the memory is free"""
    used: int = 0
    streams: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class _Sent:
    """A block on its way to the host."""

    rows: Tensor
    arrived: Any
    row_of_part: dict[int, int]


@dataclass(slots=True)
class _Stream:
    """What the launches on one stream share."""

    stream: Any
    partials: Tensor
    counters: Tensor
    tables_seen: int = -1


def pinned_bytes(num_bytes: int) -> Tensor:
    """Host memory that a device copies to and from without the host waiting."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def wait_for(event: Any) -> None:
    """Wait for a device's event, but not for ever.

    Raises:
        TimeoutError: it has not come after ``MAX_WAIT_SECONDS``.
    """
    end, pause = time.monotonic() + MAX_WAIT_SECONDS, 5e-5
    while not _has_come(event):
        if time.monotonic() > end:
            raise TimeoutError(
                f"a device has not delivered its summaries after {MAX_WAIT_SECONDS:.0f} s; "
                "expected: its streams go on. Is a collective or a kernel of the program stuck?"
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def _asks_for_stream(device: torch.device) -> Callable[[], int]:
    """What tells the current stream from others, without an object for it where there is a way."""
    if device.type == "cuda":
        return functools.partial(torch._C._cuda_getCurrentRawStream, device.index)
    module = torch.get_device_module(device)
    return lambda: int(module.current_stream(device).stream_id)


def _has_come(event: Any) -> bool:
    with RECORDING.call():
        return bool(event.query())


class Jobs:
    """Of one device; one step at a time."""

    def __init__(
        self, device: torch.device, launch: Launch, pinned: Callable[[int], Tensor] = pinned_bytes
    ) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._launch = launch
        self._pinned = pinned
        self._tables = Tables(device, pinned)
        self._tables_ready: Any = None
        self._templates: dict[tuple[object, ...], tuple[Plan, NDArray[np.int64]]] = {}
        self._waiting: dict[int, list[tuple[Variant, _Job]]] = {}
        self._streams: dict[int, _Stream] = {}
        self._current = _asks_for_stream(device)
        self._copy_stream: Any = None
        self._page: Tensor | None = None
        self._page_used = 0
        self._lock = threading.RLock()
        self.num_launches = 0
        self.begin()

    def begin(self) -> None:
        """A step begins; what was not sent of the one before is dropped."""
        self._waiting = {}
        self._block: _Block | None = None
        self._rows_of: dict[int, int] = {}
        self._sent: list[_Sent] = []
        self._num_parts = 0
        self.lost: set[int] = set()
        """parts that could not be computed"""
        self.error: Exception | None = None
        """why, where it was not for lack of memory"""

    def add(self, tensor: Tensor, dtype: str, want: int, place: Place | None) -> list[tuple[int, bool]]:
        """Queue a tensor; numbers of its parts, and whether each holds the sketch alone.

        ``tensor`` is outside any graph; nothing of it is read before ``launch``.
        """
        tensor = tensor.resolve_conj().resolve_neg()
        pairs = DTYPES[dtype].kind == "complex"
        shape = tuple(tensor.shape)
        if place is None or not want & HAS_SKETCH:
            return [(self._queue(tensor, dtype, want, shape, 0, pairs), False)]
        if len(place.boxes) == 1 and place.local == shape:
            offset = place.boxes[0][1]
            return [
                (
                    self._queue(tensor, dtype, want, place.whole, _flat(offset, place.whole, pairs), pairs),
                    False,
                )
            ]
        found = [(self._queue(tensor, dtype, want & ~HAS_SKETCH, shape, 0, pairs), False)]
        local = tensor.reshape(place.local)
        for at, offset in place.boxes:
            first = _flat(offset, place.whole, pairs)
            found.append((self._queue(local[at], dtype, HAS_SKETCH, place.whole, first, pairs), True))
        return found

    def _queue(
        self, tensor: Tensor, dtype: str, want: int, whole: tuple[int, ...], first: int, pairs: bool
    ) -> int:
        with self._lock:
            plan, words = self._template(tensor, whole, first, pairs)
            code = DTYPES[REAL_PART.get(dtype, dtype)].code
            variant = code, bool(want & HAS_DIGEST), bool(want & HAS_SKETCH), not plan.contiguous
            part, self._num_parts = self._num_parts, self._num_parts + 1
            job = _Job(plan, words, data_ptr(tensor), tensor, part)
            self._waiting.setdefault(threading.get_ident(), []).append((variant, job))
        return part

    def _template(
        self, tensor: Tensor, whole: tuple[int, ...], first: int, pairs: bool
    ) -> tuple[Plan, NDArray[np.int64]]:
        key = tensor.shape, tensor.stride(), whole, first, pairs
        known = self._templates.get(key)
        if known is None:
            if self._tables.is_full or len(self._templates) >= MAX_TEMPLATES:
                self._drop_tables()
            plan = plan_of(dims_of(tensor.shape, tensor.stride(), whole, pairs=pairs), first)
            self._tables.cover(plan.last_block)
            words = plan.words.copy()
            words[WEIGHTS] = self._tables.weights(plan.inner)
            words[OFFSETS] = 0 if plan.contiguous else self._tables.offsets(plan.inner)
            known = self._templates[key] = plan, words
            self._tables_ready = self._event(self._module.current_stream(self._device))
        return known

    def _drop_tables(self) -> None:
        for thread in list(self._waiting):
            self._launch_of(thread)
        self._templates = {}
        for table in self._tables.clear():
            for used in self._streams.values():
                self._keep_for(used.stream, table)

    # -- launches ------------------------------------------

    def launch(self) -> None:
        """Start what this thread has queued, on its current stream: one launch a kind of tensor."""
        with self._lock:
            self._launch_of(threading.get_ident())

    def _launch_of(self, thread: int) -> None:
        waiting = self._waiting.pop(thread, None)
        if waiting is None:
            return
        groups: dict[Variant, list[_Job]] = {}
        for variant, job in waiting:
            groups.setdefault(variant, []).append(job)
        for variant, jobs in groups.items():
            start = programs = 0
            for at, job in enumerate(jobs):
                programs += job.plan.num_programs
                if programs > MAX_LAUNCH_PROGRAMS or at - start >= BLOCK_ROWS:
                    self._start(variant, jobs[start:at])
                    start, programs = at, job.plan.num_programs
            self._start(variant, jobs[start:])

    def _start(self, variant: Variant, jobs: list[_Job]) -> None:
        try:
            with ours(), self._chosen():
                self._start_here(variant, jobs)
        except Exception as error:  # the program is about to go on: told when the step is written
            self.lost.update(job.part for job in jobs)
            if not isinstance(error, torch.OutOfMemoryError):
                self.error = self.error or error

    def _chosen(self) -> AbstractContextManager[object]:
        """Where this device is the current one, as it mostly is already."""
        return (
            nullcontext()
            if self._module.current_device() == self._device.index
            else self._module.device(self._device)
        )

    def _start_here(self, variant: Variant, jobs: list[_Job]) -> None:
        here = self._streams.get(self._current()) or self._new_stream()
        block = self._block
        if block is None or block.used + len(jobs) > BLOCK_ROWS:
            block = self._room()
        if here.stream not in block.streams:
            here.stream.wait_event(block.ready)
            block.streams.append(here.stream)
        words, num_programs, head = self._words(jobs, block)
        on_device = words.to(self._device, non_blocking=True)
        tables = self._tables
        if here.tables_seen != tables.num_copied:
            here.stream.wait_event(self._tables_ready)
            here.tables_seen = tables.num_copied
        job_of, jobs_there = on_device[:num_programs], on_device[head:]
        self._launch(
            variant, num_programs, job_of, jobs_there, block.rows, here.partials, here.counters, tables
        )
        self.num_launches += 1
        if len(self._streams) > 1:  # the memory may belong to another stream's allocations
            for job in jobs:
                self._keep_for(here.stream, job.tensor)

    def _words(self, jobs: list[_Job], block: _Block) -> tuple[Tensor, int, int]:
        """The words of a launch in pinned memory: for each program where its job starts, then the jobs; how
        many programs, and where the jobs begin."""
        num_programs = num_words = 0
        for job in jobs:
            num_programs += job.plan.num_programs
            num_words += len(job.words)
        head = num_programs + num_programs % 2  # jobs start at 16 bytes: for others triton compiles it again
        words, first = self._pinned_words(head + num_words)
        program, at, row, rows_of = 0, head, block.used, self._rows_of
        for number, job in enumerate(jobs):
            programs, end = job.plan.num_programs, at + len(job.words)
            words[program : program + programs] = at - head
            words[at:end] = job.words
            words[at : at + AT_LAUNCH] = (
                job.pointer, row, program, programs, program, MAX_LAUNCH_PROGRAMS + number,
            )  # fmt: skip

            rows_of[job.part] = row
            program, at, row = program + programs, end, row + 1
        block.used = row
        assert self._page is not None
        return self._page[first : first + len(words)], num_programs, head

    def _pinned_words(self, num_words: int) -> tuple[NDArray[np.int64], int]:
        """Room for a launch's words, and where it begins in the page of pinned memory they are taken from."""
        first, self._page_used = self._page_used, self._page_used + num_words
        if self._page is None or self._page_used > len(self._page):  # what is in use keeps the old one
            self._page = self._pinned(8 * max(PAGE_WORDS, num_words)).view(torch.int64)
            self._page_words: NDArray[np.int64] = numpy_of(self._page)
            first, self._page_used = 0, num_words
        return self._page_words[first : self._page_used], first

    def _new_stream(self) -> _Stream:
        stream = self._module.current_stream(self._device)
        made = self._streams[self._current()] = _Stream(
            stream=stream,
            partials=torch.empty(MAX_LAUNCH_PROGRAMS, PART_WORDS, dtype=torch.int64, device=self._device),
            counters=torch.zeros(MAX_LAUNCH_PROGRAMS + BLOCK_ROWS, dtype=torch.int32, device=self._device),
        )
        return made

    def _room(self) -> _Block:
        """A new block, after the full one is on its way."""
        if self._block is not None:
            self._send()
        rows = torch.empty(BLOCK_ROWS, PART_WORDS, dtype=torch.int64, device=self._device)
        self._block = _Block(rows=rows, ready=self._event(self._module.current_stream(self._device)))
        return self._block

    # -- to the host ------------------------------------------

    def send(self) -> None:
        """The step is over: launch what waits, and start the copy of what is on the device."""
        with self._lock:
            for thread in list(self._waiting):
                self._launch_of(thread)
            if self._block is not None:
                with self._module.device(self._device):
                    self._send()

    def _send(self) -> None:
        block = self._block
        assert block is not None
        if self._copy_stream is None:
            self._copy_stream = self._module.Stream(self._device)
        copy = self._copy_stream
        for stream in block.streams:
            copy.wait_event(self._event(stream))
        host = self._pinned(block.used * PART_WORDS * 8).view(torch.int64).view(block.used, PART_WORDS)
        with self._module.stream(copy):
            host.copy_(block.rows[: block.used], non_blocking=True)
        self._keep_for(copy, block.rows)
        self._sent.append(_Sent(rows=host, arrived=self._event(copy), row_of_part=self._rows_of))
        self._block, self._rows_of = None, {}

    def _keep_for(self, stream: Any, tensor: Tensor) -> None:
        """What was submitted to a stream reads the tensor: its memory is not handed out before."""
        tensor.record_stream(stream)

    def _event(self, stream: Any) -> Any:
        event = self._module.Event()
        event.record(stream)
        return event

    def holds(self, value: Tensor) -> bool:
        """Whether it is a number on this device, or a few."""
        return value.device == self._device and value.numel() <= MAX_NUMBERS

    def copies(self, numbers: list[Tensor]) -> Callable[[], list[Tensor]]:
        """Start copies of numbers to the host, as a function that waits for them."""
        hosts = []
        with self._module.device(self._device):
            for number in numbers:
                num_bytes = number.numel() * number.element_size()
                host = self._pinned(num_bytes).view(number.dtype).reshape(number.shape)
                hosts.append(host.copy_(number.detach(), non_blocking=True))
            arrived = self._event(self._module.current_stream(self._device))

        def found() -> list[Tensor]:
            wait_for(arrived)
            return hosts

        return found

    def taken(self) -> Callable[[], Array]:
        """What was sent of the step, as a function that waits for it and returns the parts in order."""
        sent, num_parts = self._sent, self._num_parts

        def parts() -> Array:
            found = np.zeros(num_parts, PART_DTYPE)
            for one in sent:
                wait_for(one.arrived)
                rows = numpy_of(one.rows).reshape(-1).view(PART_DTYPE)
                numbers = np.fromiter(one.row_of_part, np.int64, len(one.row_of_part))
                places = np.fromiter(one.row_of_part.values(), np.int64, len(one.row_of_part))
                found[numbers] = rows[places]
            return found

        return parts


def _flat(offset: tuple[int, ...], whole: tuple[int, ...], pairs: bool) -> int:
    flat = 0
    for start, size in zip(offset, whole, strict=True):
        flat = flat * size + start
    return flat * (2 if pairs else 1)
