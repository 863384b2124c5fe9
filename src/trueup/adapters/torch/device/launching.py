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
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trueup.adapters.placing import TensorPlace
from trueup.adapters.torch.device.parts import PART_DTYPE, PART_WORDS
from trueup.adapters.torch.device.plan import (
    AT_LAUNCH,
    OUT_ROW,
    PER_WORD,
    WORD_BYTES,
    dims_of,
    plan_of,
)
from trueup.adapters.torch.device.recording import RECORDING
from trueup.adapters.torch.device.tables import Tables
from trueup.adapters.torch.memory import Where, data_ptr, numpy_of, where_is
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

MAX_LAYOUTS = 4096
"""launches of several tensors whose words are remembered"""

Variant = tuple[int, bool, bool, int]
"""CODE, DIGEST, SKETCH, WALK of the kernel"""


@dataclass(frozen=True, slots=True)
class Room:
    """What the launches of one stream into one block have in common: arguments of the kernel."""

    tensors: tuple[Tensor, ...]
    """rows, partials, counters, powers, blocks, signs, float8"""
    addresses: tuple[int, ...]
    stream: int


class Launch(Protocol):
    """Starts the kernel on the current stream."""

    def __call__(
        self, variant: Variant, num_programs: int, jobs: Tensor, pointer: int, row: int, room: Room
    ) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Template:
    """What the jobs of all tensors with these dims have in common."""

    variant: Variant
    num_programs: int
    words: NDArray[np.int64]
    there: Tensor
    """the words on the device: of a job alone address and row are arguments of the launch, and nothing is
    copied"""


@dataclass(frozen=True, slots=True)
class _Layout:
    """What launches of tensors with the same templates have in common."""

    words: NDArray[np.int64]
    num_programs: int
    starts: list[int]
    """of the jobs, whose first words are the address and the row"""


_Job = tuple[_Template, int, Tensor, int]
"""one reading of one tensor, or of part of it, that has not been launched: its address, the tensor, which is
kept until then, and the number of its part"""


@dataclass(slots=True)
class _Block:
    """Rows on the device, and whose streams wrote to them."""

    rows: Tensor
    ready: Any
    """after which the memory is free"""
    parts: list[int] = field(default_factory=list)
    """numbers of those whose rows are in use, in the order of the rows"""
    streams: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Sent:
    """A block on its way to the host."""

    rows: Tensor
    arrived: Any
    parts: list[int]


@dataclass(slots=True)
class _Stream:
    """What the launches on one stream share."""

    stream: Any
    partials: Tensor
    counters: Tensor
    block: _Block | None = None
    """whose room it is"""
    room: Room | None = None
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


def _asks_whether_current(device: torch.device) -> Callable[[], bool]:
    """Whether what is started now runs on the device, as it mostly does."""
    if device.type == "cuda":
        return lambda: bool(torch._C._cuda_getDevice() == device.index)
    module = torch.get_device_module(device)
    return lambda: bool(module.current_device() == device.index)


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
        self._templates: dict[tuple[object, ...], _Template] = {}
        self._layouts: dict[tuple[_Template, ...], _Layout] = {}
        self._waiting: dict[int, list[_Job]] = {}
        self._streams: dict[int, _Stream] = {}
        self._current = _asks_for_stream(device)
        self._is_current = _asks_whether_current(device)
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
        self._sent: list[_Sent] = []
        self._num_parts = 0
        self.lost: set[int] = set()
        """parts that could not be computed"""
        self.error: Exception | None = None
        """why, where it was not for lack of memory"""

    def add_placed(self, tensor: Tensor, dtype: str, want: int, place: TensorPlace) -> list[tuple[int, bool]]:
        """Queue a tensor whose sketch is that of a part of a larger one; numbers of its parts, and whether
        each holds the sketch alone. ``tensor`` is outside any graph."""
        pairs, shape = DTYPES[dtype].kind == "complex", tuple(tensor.shape)
        if len(place.boxes) == 1 and place.local == shape:
            first = _flat(place.boxes[0][1], place.whole, pairs)
            return [(self.add(tensor, where_is(tensor), dtype, want, place.whole, first), False)]
        found = [(self.add(tensor, where_is(tensor), dtype, want & ~HAS_SKETCH), False)]
        local = tensor.reshape(place.local)
        for at, offset in place.boxes:
            first = _flat(offset, place.whole, pairs)
            part = local[at]
            found.append((self.add(part, where_is(part), dtype, HAS_SKETCH, place.whole, first), True))
        return found

    def add(
        self,
        tensor: Tensor,
        where: Where,
        dtype: str,
        want: int,
        whole: tuple[int, ...] | None = None,
        first: int = 0,
    ) -> int:
        """Queue one part: number of it. Nothing of the tensor is read before ``launch``.

        ``whole``: the shape its sketch counts in, where that is another than its own, and ``first`` the
        row-major index of its first element there.
        """
        pointer, shape, strides = where
        key = (shape, strides, dtype, want, whole, first, pointer % WORD_BYTES == 0)
        with self._lock:
            template = self._templates.get(key) or self._made(*key)
            part = self._num_parts
            self._num_parts = part + 1
            job = (template, pointer, tensor, part)
            thread = threading.get_ident()
            waiting = self._waiting.get(thread)
            if waiting is None:
                self._waiting[thread] = [job]
            else:
                waiting.append(job)
        return part

    def _made(
        self,
        shape: torch.Size,
        strides: tuple[int, ...],
        dtype: str,
        want: int,
        whole: tuple[int, ...] | None,
        first: int,
        aligned: bool,
    ) -> _Template:
        tables = self._tables
        if tables.is_full or len(self._templates) >= MAX_TEMPLATES:
            self._drop_tables()
        pairs = DTYPES[dtype].kind == "complex"
        dims = dims_of(shape, strides, shape if whole is None else whole, pairs=pairs)
        plan = plan_of(dims, first, PER_WORD.get(dtype, 0) if aligned else 0)
        tables.cover(plan.last_block)
        words, at = self._pinned_words(len(plan.words))
        words[:] = plan.words
        words[2:AT_LAUNCH] = 0, plan.num_programs, 0, MAX_LAUNCH_PROGRAMS
        tables.fill(words, plan)
        code = DTYPES[REAL_PART.get(dtype, dtype)].code
        variant = code, bool(want & HAS_DIGEST), bool(want & HAS_SKETCH), plan.walk
        made = _Template(variant, plan.num_programs, words, self._copied(at, len(words)))
        self._templates[shape, strides, dtype, want, whole, first, aligned] = made
        tables.num_copied += 1
        self._tables_ready = self._event(self._module.current_stream(self._device))
        return made

    def _drop_tables(self) -> None:
        for thread in list(self._waiting):
            self._launch_of(thread)
        dropped = [*self._tables.clear(), *(template.there for template in self._templates.values())]
        self._templates, self._layouts = {}, {}
        for used in self._streams.values():
            for table in dropped:
                self._keep_for(used.stream, table)

    # -- launches ------------------------------------------

    def launch(self) -> None:
        """Start what this thread has queued, on its current stream: one launch a kind of tensor."""
        if self._waiting:
            with self._lock:
                self._launch_of(threading.get_ident())

    def _launch_of(self, thread: int) -> None:
        waiting = self._waiting.pop(thread, None)
        if waiting is None:
            return
        if len(waiting) == 1:
            self._start(waiting[0][0].variant, waiting)
            return
        groups: dict[Variant, list[_Job]] = {}
        for job in waiting:
            groups.setdefault(job[0].variant, []).append(job)
        for variant, jobs in groups.items():
            start = programs = 0
            for at, job in enumerate(jobs):
                programs += job[0].num_programs
                if programs > MAX_LAUNCH_PROGRAMS or at - start >= BLOCK_ROWS:
                    self._start(variant, jobs[start:at])
                    start, programs = at, job[0].num_programs
            self._start(variant, jobs[start:] if start else jobs)

    def _start(self, variant: Variant, jobs: list[_Job]) -> None:
        try:
            if self._is_current():
                self._start_here(variant, jobs)
            else:
                with self._module.device(self._device):
                    self._start_here(variant, jobs)
        except Exception as error:  # the program is about to go on: told when the step is written
            self.lost.update([job[3] for job in jobs])
            if not isinstance(error, torch.OutOfMemoryError):
                self.error = self.error or error

    def _start_here(self, variant: Variant, jobs: list[_Job]) -> None:
        number = self._current()
        here = self._streams.get(number) or self._new_stream(number)
        block = self._block
        if block is None or len(block.parts) + len(jobs) > BLOCK_ROWS:
            block = self._new_block()
        if here.room is None or here.block is not block or here.tables_seen != self._tables.num_copied:
            here.room = self._room(number, here, block)
        row = len(block.parts)
        if len(jobs) == 1:
            template, pointer, _, part = jobs[0]
            block.parts.append(part)
            self._launch(variant, template.num_programs, template.there, pointer, row, here.room)
        else:
            words, num_programs = self._words(jobs, row)
            block.parts += [job[3] for job in jobs]
            self._launch(variant, num_programs, words, 0, 0, here.room)
        self.num_launches += 1
        if len(self._streams) > 1:  # the memory may belong to another stream's allocations
            for job in jobs:
                self._keep_for(here.stream, job[2])

    def _room(self, number: int, here: _Stream, block: _Block) -> Room:
        """After what the stream must wait for."""
        if number not in block.streams:
            here.stream.wait_event(block.ready)
            block.streams[number] = here.stream
        tables = self._tables
        if here.tables_seen != tables.num_copied:
            here.stream.wait_event(self._tables_ready)
            here.tables_seen = tables.num_copied
        here.block = block
        tensors = (
            block.rows, here.partials, here.counters,
            tables.powers, tables.blocks, tables.signs, tables.float8,
        )  # fmt: skip
        return Room(tensors, tuple(map(data_ptr, tensors)), number)

    def _words(self, jobs: list[_Job], row: int) -> tuple[Tensor, int]:
        """The words of a launch on the device: for each program where its job starts, then the jobs; how many
        programs."""
        templates = tuple([job[0] for job in jobs])
        layout = self._layouts.get(templates)
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts = {}
            layout = self._layouts[templates] = _layout_of(templates)
        words, first = self._pinned_words(len(layout.words))
        words[:] = layout.words
        for at, job in zip(layout.starts, jobs, strict=True):
            words[at] = job[1]
            words[at + OUT_ROW] = row
            row += 1
        return self._copied(first, len(words)), layout.num_programs

    def _copied(self, first: int, num_words: int) -> Tensor:
        """Words of the page on the device."""
        assert self._page is not None
        return self._page[first : first + num_words].to(self._device, non_blocking=True)

    def _pinned_words(self, num_words: int) -> tuple[NDArray[np.int64], int]:
        """Room for words, and where it begins in the page of pinned memory they are taken from."""
        first, self._page_used = self._page_used, self._page_used + num_words
        if self._page is None or self._page_used > len(self._page_words):  # what is in use keeps the old one
            self._page = self._pinned(8 * max(PAGE_WORDS, num_words)).view(torch.int64)
            self._page_words: NDArray[np.int64] = numpy_of(self._page)
            first, self._page_used = 0, num_words
        return self._page_words[first : self._page_used], first

    def _new_stream(self, number: int) -> _Stream:
        stream = self._module.current_stream(self._device)
        made = self._streams[number] = _Stream(
            stream=stream,
            partials=torch.empty(MAX_LAUNCH_PROGRAMS, PART_WORDS, dtype=torch.int64, device=self._device),
            counters=torch.zeros(MAX_LAUNCH_PROGRAMS + BLOCK_ROWS, dtype=torch.int32, device=self._device),
        )
        return made

    def _new_block(self) -> _Block:
        """After the full one is on its way."""
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
        for stream in block.streams.values():
            copy.wait_event(self._event(stream))
        used = len(block.parts)
        host = self._pinned(used * PART_WORDS * 8).view(torch.int64).view(used, PART_WORDS)
        with self._module.stream(copy):
            host.copy_(block.rows[:used], non_blocking=True)
        self._keep_for(copy, block.rows)
        self._sent.append(_Sent(rows=host, arrived=self._event(copy), parts=block.parts))
        self._block = None
        for of in self._streams.values():  # else they hold the block's memory until their next launch
            of.room = of.block = None

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
                found[np.array(one.parts, np.int64)] = rows
            return found

        return parts


def _layout_of(templates: tuple[_Template, ...]) -> _Layout:
    num_programs = sum(template.num_programs for template in templates)
    words = np.empty(num_programs + sum(len(template.words) for template in templates), np.int64)
    program, at, starts = 0, num_programs, []
    for number, template in enumerate(templates):
        programs, end = template.num_programs, at + len(template.words)
        words[program : program + programs] = at
        words[at:end] = template.words
        words[at : at + AT_LAUNCH] = 0, 0, program, programs, program, MAX_LAUNCH_PROGRAMS + number
        starts.append(at)
        program, at = program + programs, end
    return _Layout(words, num_programs, starts)


def _flat(offset: tuple[int, ...], whole: tuple[int, ...], pairs: bool) -> int:
    flat = 0
    for start, size in zip(offset, whole, strict=True):
        flat = flat * size + start
    return flat * (2 if pairs else 1)
