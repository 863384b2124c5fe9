"""A device that is not the CPU, in Python on the PrivateUse1 key: ``lazy``.

Its addresses are mapped nowhere: host code that reads device memory crashes. Its streams run nothing until
somebody waits for them, and then nothing that was not waited for: what is read on another stream without an
event is read before it was written. Its allocator hands out a freed block at once, and overwrites it in the
order of the stream that it was allocated on; ``record_stream`` keeps it until that stream has run. Everything
is counted. Registering it changes the process: import it in a process of its own.
"""

from __future__ import annotations

import bisect
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from trueup.adapters.torch.memory import own_memory, storage_of, storage_ptr

NAME = "lazy"
_BASE, _ROUND = 0x5000_0000_0000, 512
_TYPE = 20
"""number of PrivateUse1 among device types"""
POISON = 0xFB


@dataclass
class Counters:
    """What happened on the device."""

    operations: int = 0
    kernels: int = 0
    copies: int = 0
    synchronisations: int = 0
    """waits of the thread that trains"""
    bytes_in_use: int = 0
    most_bytes: int = 0
    allocations: int = 0
    events: int = 0
    """recorded or asked for"""

    def begin(self) -> None:
        """From here on the most bytes in use are measured anew."""
        self.most_bytes = self.bytes_in_use


counters = Counters()
training_thread = [0]
fail_at = [-1]
"""number of the allocation from which on memory is out, -1: none"""
stuck: set[int] = set()
"""streams that never finish"""


class Stream(torch.Stream):
    """Work that runs when it is waited for."""

    def __new__(cls, device: object = None, number: int | None = None) -> Stream:
        number = len(_queues) if number is None else number
        made: Stream = super().__new__(cls, stream_id=number, device_index=0, device_type=_TYPE)
        _queues.setdefault(number, Queue(number))
        return made

    def wait_event(self, event: Event) -> None:  # type: ignore[override]
        """What comes after on this stream runs after the event."""
        of, at = event.queue, event.at
        if of is not None:
            _queues[self.stream_id].submit(lambda: of.run(at))

    def wait_stream(self, other: Stream) -> None:  # type: ignore[override]
        """As an event recorded there now."""
        event = Event()
        event.record(other)
        self.wait_event(event)

    def synchronize(self) -> None:
        """Wait until all that was submitted has run."""
        _wait(_queues[self.stream_id])


class Event:
    """A place in a stream."""

    def __init__(self, *_: object, **__: object) -> None:
        self.queue: Queue | None = None
        self.at = 0

    def record(self, stream: Stream | None = None) -> None:
        """Here."""
        counters.events += 1
        self.queue = _queues[(stream or module.current_stream()).stream_id]
        self.at = self.queue.submitted

    def synchronize(self) -> None:
        """Wait for all before it."""
        if self.queue is not None:
            _wait(self.queue, self.at)

    def query(self) -> bool:
        """Whether it has run; time passes for the device too."""
        counters.events += 1
        if self.queue is None or self.queue.number in stuck:
            return self.queue is None
        self.queue.run(self.at)
        return True


class Queue:
    """What was submitted to one stream."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.work: deque[Callable[[], None]] = deque()
        self.submitted = self.done = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Run it after what was submitted before."""
        with _submitting:  # whoever drops a tensor submits, in any thread
            self.work.append(work)
            self.submitted += 1

    def run(self, until: int) -> None:
        """Run what was submitted, up to a place."""
        if self.number in stuck:
            raise TimeoutError(f"stream {self.number} does not finish")
        with _running, own_memory(), torch.no_grad(), torch._C._ExcludeDispatchKeyGuard(_AUTOGRAD):
            while self.done < until:
                work = self.work.popleft()
                work()
                self.done += 1


_AUTOGRAD = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradPrivateUse1)
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_queues: dict[int, Queue] = {}
_submitting = threading.RLock()
_running = threading.RLock()
"""any thread may wait, one at a time runs what was submitted"""


def _wait(queue: Queue, until: int | None = None) -> None:
    counters.synchronisations += threading.get_ident() == training_thread[0]
    queue.run(queue.submitted if until is None else until)


@dataclass
class Block:
    """Memory of the device."""

    address: int
    memory: np.ndarray[Any, np.dtype[np.uint8]]
    queue: Queue
    readers: dict[int, int] = field(default_factory=dict)
    """streams that must have run up to here before it is used again"""


class Allocator:
    """Counts, poisons, and hands out freed memory at once."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self.every: dict[int, Block] = {}
        """also those that are free: memory stays where it is"""
        self._free: dict[int, list[Block]] = {}
        self._starts: list[int] = []
        self._next = _BASE

    def allocate(self, num_bytes: int) -> torch.UntypedStorage:
        """A storage whose memory is not the host's."""
        counters.allocations += 1
        if 0 <= fail_at[0] <= counters.allocations:
            raise torch.OutOfMemoryError(f"lazy: no memory for {num_bytes} bytes")
        with _submitting:
            return self._allocated(num_bytes)

    def _allocated(self, num_bytes: int) -> torch.UntypedStorage:
        size = max(_ROUND, -(-num_bytes // _ROUND) * _ROUND)
        here = _queues[module.current_stream().stream_id]
        block = self._reused(size, here)
        if block is None:
            block = Block(self._next, np.full(size, POISON, np.uint8), here)
            self._next += size + _ROUND
            self.every[block.address] = block
            self._starts.append(block.address)
        self.blocks[block.address] = block
        counters.bytes_in_use += size
        counters.most_bytes = max(counters.most_bytes, counters.bytes_in_use)
        storage: torch.UntypedStorage = torch._C._construct_storage_from_data_pointer(
            block.address, torch.device(NAME, 0), num_bytes
        )
        weakref.finalize(storage, self._freed, block)
        return storage

    def _reused(self, size: int, here: Queue) -> Block | None:
        free = self._free.get(size, [])
        for at in reversed(range(len(free))):
            block = free[at]
            if block.queue is here and all(_queues[n].done >= until for n, until in block.readers.items()):
                free.pop(at)
                block.readers = {}
                return block
        return None

    def _freed(self, block: Block) -> None:
        with _submitting:
            counters.bytes_in_use -= len(block.memory)
            self.blocks.pop(block.address, None)
            if not block.readers:
                block.queue.submit(lambda: block.memory.fill(POISON))
            self._free.setdefault(len(block.memory), []).append(block)

    def at(self, address: int) -> Block:
        """The block that an address lies in."""
        start = self._starts[bisect.bisect_right(self._starts, address) - 1]
        return self.every[start]


allocator = Allocator()


def host_address(address: int) -> int:
    """Where the simulation keeps what lies at an address of the device; for kernels alone."""
    block = allocator.at(address)
    return int(block.memory.ctypes.data) + address - block.address


# -- tensors ------------------------------------------


@dataclass(frozen=True)
class Spec:
    """A tensor of the device, as its memory is at execution."""

    block: Block
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def on_host(self) -> torch.Tensor:
        """The simulated memory."""
        item = self.dtype.itemsize
        raw = torch.from_numpy(self.block.memory)
        return raw[: len(raw) // item * item].view(self.dtype).as_strided(self.size, self.stride, self.offset)


def is_here(value: object) -> bool:
    """Whether it is a tensor of the device."""
    return isinstance(value, torch.Tensor) and value.device.type == NAME


_EMPTY = Block(0, np.zeros(_ROUND, np.uint8), Queue(-1))


def _address_of(tensor: torch.Tensor) -> int:
    return int(storage_ptr(storage_of(tensor)))


def spec_of(tensor: torch.Tensor) -> Spec:
    """Where its elements are."""
    address = _address_of(tensor)
    block = allocator.blocks[address] if address else _EMPTY
    return Spec(block, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor with memory of its own."""
    numel = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    storage = allocator.allocate(numel * dtype.itemsize)
    made: torch.Tensor = torch._C._acc.create_empty_tensor((0,), dtype)
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(_CPU, made, storage, 0, size, stride)
    return made


def _meta(value: Any) -> Any:
    if is_here(value):
        extent = storage_of(value).nbytes() // max(value.element_size(), 1)
        base = torch.empty(extent, dtype=value.dtype, device="meta")
        return torch.as_strided(base, value.shape, value.stride(), value.storage_offset())
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    return torch.device("meta") if isinstance(value, torch.device) and value.type == NAME else value


def _host(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.on_host()
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def _specs(value: Any) -> Any:
    if is_here(value):
        return spec_of(value)
    return value.clone() if isinstance(value, torch.Tensor) else value


def _view(op: Any, args: Any, kwargs: Any) -> Any:
    source = next(a for a in tree_flatten((args, kwargs))[0] if is_here(a))

    def here(like: torch.Tensor) -> torch.Tensor:
        made = torch.ops.aten.as_strided.default.redispatch(
            _CPU, source, like.shape, like.stride(), like.storage_offset()
        )
        return made if like.dtype == source.dtype else _as_dtype(source, like)

    return _mapped(
        lambda one: here(one) if isinstance(one, torch.Tensor) else one, _made_of(op, args, kwargs)[0]
    )


def _as_dtype(source: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch._C._acc.create_empty_tensor((0,), like.dtype)
    storage = storage_of(source)
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        _CPU, made, storage, like.storage_offset(), like.shape, like.stride()
    )
    return made


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """As ``tree_map`` of arguments, in a fifth of its time."""
    if type(value) is tuple:
        return tuple([_mapped(function, one) for one in value])
    if type(value) is list:
        return [_mapped(function, one) for one in value]
    if type(value) is dict:
        return {name: _mapped(function, one) for name, one in value.items()}
    return function(value)


def _meta_all(values: Any) -> Any:
    return _mapped(_meta, values)


def _key(value: Any) -> Any:
    """What the shapes of an operation's results can depend on."""
    if isinstance(value, torch.Tensor):
        extent = storage_of(value).nbytes() if is_here(value) else None
        return value.dtype, tuple(value.shape), value.stride(), value.storage_offset(), extent, value.device
    if type(value) in (tuple, list):
        return tuple([_key(one) for one in value])
    if type(value) is dict:
        return tuple([(name, _key(one)) for name, one in value.items()])
    return type(value), value


_shapes: dict[Any, Any] = {}
"""operation and arguments -> what it makes of them on the meta device, which takes torch a millisecond"""


def _made_of(op: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """What an operation would give, on the meta device, and its arguments by name after it: ``out=`` has
    got the shape that it should have.

    Raises:
        NotImplementedError: it depends on what the arguments hold.
    """
    key = op, _key(args), _key(kwargs)
    if key not in _shapes:
        like = _meta_all(kwargs)
        _shapes[key] = op(*_meta_all(args), **like), like
    found: tuple[Any, Any] = _shapes[key]
    return found


def _copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
    counters.copies += source.device != target.device
    queue = _queues[module.current_stream().stream_id]
    if not is_here(source):
        if not non_blocking:
            source = source.clone()
        into = spec_of(target)
        queue.submit(lambda: into.on_host().copy_(source))
    elif not is_here(target):
        of = spec_of(source)
        queue.submit(lambda: target.copy_(of.on_host()))
    else:
        of, into = spec_of(source), spec_of(target)
        queue.submit(lambda: into.on_host().copy_(of.on_host()))
    if source.device != target.device and not non_blocking:
        _wait(queue)


def _unwrapped(op: Any, args: Any) -> Any:
    """Python numbers that stand for tensors, as tensors."""

    def tensor(argument: Any, value: Any) -> Any:
        if str(argument.type) != "Tensor" or not isinstance(value, (int, float)):
            return value
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)

    return tuple(tensor(a, value) for a, value in zip(op._schema.arguments, args, strict=False))


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Every operation that reaches the device."""
    name, args = op.name(), _unwrapped(op, args)
    if name in ("aten::empty.memory_format", "aten::empty_strided"):
        like = op(*_meta_all(args), **{**_meta_all(kwargs), "pin_memory": None})
        return empty_strided(tuple(like.shape), like.stride(), like.dtype)
    if name == "aten::record_stream":
        queue = _queues[args[1].stream_id]
        block = allocator.blocks[_address_of(args[0])]
        block.readers[queue.number] = queue.submitted
        return None
    if name == "aten::_copy_from":
        _copy(args[0], args[1], args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        return args[1]
    if name == "aten::copy_":
        source = args[1].expand(args[0].shape) if args[1].shape != args[0].shape else args[1]
        _copy(source, args[0], args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        return args[0]
    if name.startswith("aten::set_"):
        return op.redispatch(_CPU, *args, **kwargs)
    if name == "aten::_local_scalar_dense":
        queue = _queues[module.current_stream().stream_id]
        _wait(queue)
        return op(spec_of(args[0]).on_host())
    if op.is_view:
        return _view(op, args, kwargs)
    return _computed(op, args, kwargs)


def _computed(op: Any, args: Any, kwargs: Any) -> Any:
    counters.operations += 1
    queue = _queues[module.current_stream().stream_id]
    _resize(op, args, kwargs)
    specs = _mapped(_specs, (args, kwargs))
    written = [
        value
        for argument, value in _arguments(op, args, kwargs)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if written:
        queue.submit(lambda: _call(op, specs))
        found = tree_flatten(written)[0]
        if not op._schema.returns:
            return None
        return found[0] if len(op._schema.returns) == 1 else tuple(found)
    try:
        like, _ = _made_of(op, args, kwargs)
    except NotImplementedError:
        _wait(queue)
        like = _call(op, specs)
    outputs = tree_map(
        lambda one: (
            empty_strided(tuple(one.shape), one.stride(), one.dtype) if isinstance(one, torch.Tensor) else one
        ),
        like,
    )
    targets = [spec_of(one) for one in tree_flatten(outputs)[0] if is_here(one)]

    def work() -> None:
        results = [one for one in tree_flatten(_call(op, specs))[0] if isinstance(one, torch.Tensor)]
        for target, result in zip(targets, results, strict=True):
            target.on_host().copy_(result)

    queue.submit(work)
    return outputs


def _empty_like(one: Any) -> Any:
    return empty_strided(tuple(one.shape), one.stride(), one.dtype) if isinstance(one, torch.Tensor) else one


def _resize(op: Any, args: Any, kwargs: Any) -> None:
    """Targets of ``out=`` get the shape that the operation gives them."""
    outs = [a.name for a in op._schema.arguments if a.is_out]
    targets = [kwargs[name] for name in outs if is_here(kwargs.get(name))]
    if not targets:
        return
    _, like = _made_of(op, args, kwargs)
    for name, target in zip(outs, targets, strict=True):
        if target.shape != like[name].shape:
            shape, stride = tuple(like[name].shape), like[name].stride()
            new = empty_strided(shape, stride, target.dtype)
            torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
                _CPU, target, storage_of(new), 0, shape, stride
            )


def _call(op: Any, specs: Any) -> Any:
    args, kwargs = _mapped(_host, specs)
    return op(*args, **kwargs)


def _arguments(op: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    for at, argument in enumerate(op._schema.arguments):
        if at < len(args):
            yield argument, args[at]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


# -- the device's module ------------------------------------------


def _whose() -> str:
    """The engine runs a backward in a thread of its own, on the streams of its forward."""
    name = threading.current_thread().name
    return name if name.startswith("trueup") else "program"


class Module:
    """``torch.lazy``."""

    Stream, Event = Stream, Event

    def __init__(self) -> None:
        self._first = Stream(number=0)
        self._current: dict[str, Stream] = {}

    def current_stream(self, device: object = None) -> Stream:
        """Of the program with its backward, or of another thread."""
        return self._current.get(_whose(), self._first)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Submit to another stream."""
        before, self._current[_whose()] = self.current_stream(), stream
        try:
            yield
        finally:
            self._current[_whose()] = before

    @contextmanager
    def device(self, device: object) -> Iterator[None]:
        """There is one."""
        yield

    def synchronize(self, device: object = None) -> None:
        """Wait for all streams, the last one first."""
        for number in sorted(_queues.keys() - stuck, reverse=True):
            _wait(_queues[number])

    def is_initialized(self) -> bool:
        """Always."""
        return True

    is_available = is_initialized

    def current_device(self) -> int:
        """There is one."""
        return 0

    def device_count(self) -> int:
        """There is one."""
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Random numbers are the host's."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Of autocast."""
        return [torch.bfloat16, torch.float16]


class Graph:
    """What is recorded between its beginning and its end runs later: here it runs at once, and is counted."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}

    def capture_begin(self) -> None:
        """From here on."""
        self.held = {name: -value for name, value in vars(counters).items()}

    def capture_end(self) -> None:
        """Until here."""
        self.held = {name: value + vars(counters)[name] for name, value in self.held.items()}


module = Module()
_library = torch.library.Library("_", "IMPL")


def register() -> torch.device:
    """Make the device known to torch."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=module)
    _library.fallback(_run, "PrivateUse1")
    return torch.device(NAME, 0)
