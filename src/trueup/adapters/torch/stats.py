"""From a tensor to its row of summaries.

On the CPU one C pass writes the row at once; on other devices, or without the kernel, torch operations are
queued and brought to the host when the step ends. A tensor seen again is summarised again only if something
may have written to it since.
"""

from __future__ import annotations

import ctypes
import importlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import nn

from trueup.adapters.base import OnItsWay, Recorder, Row, Sink
from trueup.adapters.choosing import Choosing
from trueup.adapters.placing import TensorPlace, WherePlaced
from trueup.adapters.torch.device.queue import Queue, QueuedStep
from trueup.adapters.torch.device.recording import RECORDING
from trueup.adapters.torch.memory import (
    FREED,
    bytes_of,
    data_ptr,
    expired,
    forget_reference,
    in_transform,
    is_freed,
    storage_of,
    storage_ptr,
    weak_reference,
    where_is,
)
from trueup.adapters.torch.quiet import asked_once, launches
from trueup.numerics._native import AVAILABLE, kernels
from trueup.numerics.dtypes import DTYPES, REAL_PART
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, SUMMARY_DTYPE
from trueup.types.pieces import Pieces

Tensor = torch.Tensor
_PLAIN_TYPES = (torch.Tensor, nn.Parameter)
_STRIDED = torch.strided
_MEMO_NUMEL = 4096
"""below this a summary costs less than finding out whether it is still right"""

CODES: dict[torch.dtype, tuple[int, str, int]] = {
    getattr(torch, name): (spec.code, name, spec.itemsize)
    for name, spec in DTYPES.items()
    if hasattr(torch, name)
}

Take = Callable[[object, Tensor], int]


def _is_built_for_devices() -> bool:
    """Whether torch knows an accelerator, also where the program may not use it; asks no driver.

    torch 2.4 and 2.5 have no ``torch.accelerator``, and 2.6 raises where it finds no device.
    """
    if torch.__version__ >= "2.7":
        return torch.accelerator.current_accelerator() is not None
    return torch.backends.cuda.is_built() or hasattr(torch, "npu") or torch.xpu._is_compiled()


class Summariser(Choosing):
    """Rows for the tensors of one process."""

    def __init__(self, sink: Sink, lock: AbstractContextManager[object]) -> None:
        """``lock``: held by whoever calls ``row``."""
        super().__init__(sink)
        self._lock = lock
        self._want_small = self._want | HAS_DIGEST
        """the digest of a small tensor costs nothing, and of many that are alike one row is kept"""
        self._memo: dict[tuple[object, ...], tuple[int, int, int]] = {}
        """row, number that tells whether its storage has been freed, probe"""
        self._references = StorageReferences()
        self._distrusted: dict[int, StorageReference] = {}
        self._carried: dict[tuple[object, ...], tuple[bytes, StorageReference, int]] = {}
        """parameters after an update, for the start of the next step: its bytes are the same"""
        self._queue = Queue()
        if _is_built_for_devices():
            launches(self._queue.launch)
        self.take: Take = _long_way if self._stores else take_small(self._want_small, _MEMO_NUMEL)
        """row of a plain small tensor, by C alone; -1 where that is left to ``row``"""
        self._written = np.zeros(1, SUMMARY_DTYPE)
        self._address: int = self._written.ctypes.data
        """where the kernel writes; the engine lets one thread at a time come here"""
        if not AVAILABLE:
            sink.limit(
                "the C kernel is not built: summaries are computed by torch operations, several times slower"
            )

    def row(
        self,
        tensor: Tensor,
        phase: str,
        slot: str,
        kind: str = "module",
        place: WherePlaced = None,
    ) -> Row:
        """Row number of the tensor's summary; with a reason where there is none, or it is special.

        Args:
            tensor: of any kind.
            phase: of the record.
            slot: of the record.
            kind: the call's: values of module calls may be wanted where others are not.
            place: tells from its shape where a tensor lies in its whole (``placing.Placing.of``); None: whole
        """
        self._kind, self._place = kind, None
        if tensor.__class__ not in _PLAIN_TYPES:
            return self._unusual(tensor, phase, slot, place)
        if place is not None and not tensor.is_nested:
            self._place = place(tensor.shape)
        return self._plain(tensor, None if self._place is None else self._place.text, phase, slot)

    def _plain(self, tensor: Tensor, placement: str | None, phase: str, slot: str) -> Row:
        spec = CODES.get(tensor.dtype)
        if spec is None or tensor.layout is not _STRIDED or tensor.is_nested:
            return self._odd_dtype_or_layout(tensor, self._not_in_place(placement), phase, slot)
        code, dtype, itemsize = spec
        if not (tensor.is_cpu and AVAILABLE):
            return self._queued(tensor, dtype, placement, phase, slot)
        if tensor.is_neg() or tensor.is_conj():
            tensor = tensor.resolve_conj().resolve_neg()
        numel = tensor.numel()
        if numel >= _MEMO_NUMEL:
            return self._large(tensor, spec, numel * itemsize, placement, phase, slot)
        shape = tensor.shape
        strides = None if tensor.is_contiguous() else tensor.stride()
        kernels.summarise(data_ptr(tensor), shape, strides, code, self._want_small, self._address)
        row = self._sink.recorder.commit(self._address, dtype, shape, placement)
        if self._place is not None:
            self._put_sketch(row, tensor, code, self._place)
        if self._stores:
            self._store(row, tensor, dtype, shape, phase, slot)
        return row

    # In one piece: runs for most large tensors: a call of its own for each part costs as much as the part.
    def _large(
        self,
        tensor: Tensor,
        spec: tuple[int, str, int],
        num_bytes: int,
        placement: str | None,
        phase: str,
        slot: str,
    ) -> int:
        """A row that is worth remembering: most large tensors are seen at several sites."""
        code, dtype, _ = spec
        shape = tensor.shape
        strides = None if tensor.is_contiguous() else tensor.stride()
        pointer = data_ptr(tensor)
        key = (pointer, tensor._version, shape, strides, code, placement)
        probe = kernels.probe(pointer, num_bytes) if strides is None else 0
        recorder = self._sink.recorder
        known = self._memo.get(key)
        if known is not None and known[2] == probe and not expired(known[1]):
            if self._stores and not recorder.has_values(known[0]):
                self._store(known[0], tensor, dtype, shape, phase, slot)
            return known[0]
        carried = self._carried.pop(key, None) if phase == "param" else None
        if carried is not None and (carried[2] != probe or carried[1].expired()):
            carried = None
        if carried is not None:
            ctypes.memmove(self._address, carried[0], SUMMARY_DTYPE.itemsize)
        else:
            kernels.summarise(pointer, shape, strides, code, self._want, self._address)
        if self._dedupe:
            row = recorder.commit(self._address, dtype, shape, placement)
        else:
            row = recorder.keep(self._address, dtype, shape, "cpu", placement)
        if carried is None and self._place is not None:
            self._put_sketch(row, tensor, code, self._place)
        if phase == "optimizer" and slot == "param" and not self._sink.options.manual_steps:
            self._carried[key] = recorder.view(row).tobytes(), StorageReference(storage_of(tensor)), probe
        if self._stores:
            self._store(row, tensor, dtype, shape, phase, slot)
        storage = storage_of(tensor)
        if not (self._distrusted and storage_ptr(storage) in self._distrusted):
            self._memo[key] = row, self._references.to(storage), probe
        return row

    def _not_in_place(self, placement: str | None) -> str | None:
        """Without the place, where the sketch cannot be taken there."""
        place, self._place = self._place, None
        return placement if place is None else place.held

    def _put_sketch(self, row: int, tensor: Tensor, code: int, place: TensorPlace) -> None:
        """Where sketches are kept, that of a part at its place in the whole."""
        if not self._want & HAS_SKETCH:
            return
        local, out = tensor.detach().reshape(place.local), np.zeros(1, SUMMARY_DTYPE)
        total = np.zeros_like(out["sketch"][0], np.float64)
        for part, offset in place.boxes:
            view = local[part]
            address = out.ctypes.data
            kernels.summarise(
                data_ptr(view),
                tuple(view.shape),
                view.stride(),
                code,
                HAS_SKETCH,
                address,
                place.whole,
                offset,
            )
            total += out["sketch"][0]
        self._sink.recorder.view(row)["sketch"] = total

    # -- what is not a plain strided tensor on the CPU ------------------------------------------

    def _queued(self, tensor: Tensor, dtype: str, placement: str | None, phase: str, slot: str) -> Row:
        """Not on the CPU, or no kernel: torch operations, brought to the host when the step ends."""
        if tensor.is_meta:
            return self._meta(tensor, dtype, placement, phase, slot)
        device = self._queue.of(tensor)
        if RECORDING.depth or asked_once(device.name, device.is_recorded):
            return None, "inside the capture of a device graph: its values come when the graph runs"
        if tensor.is_neg() or (dtype in REAL_PART and tensor.is_conj()):
            tensor = tensor.detach().resolve_conj().resolve_neg()
        where = where_is(tensor)
        if not where[0] and is_freed(tensor):
            return None, FREED
        key = (where, tensor._version, dtype, placement)
        known = self._memo.get(key)
        recorder = self._sink.recorder
        if known is not None and not tensor.is_cpu and not expired(known[1]):
            if self._stores and not recorder.has_values(known[0]):
                self._store(known[0], tensor, dtype, tuple(where[1]), phase, slot)
            return known[0]
        try:
            row = self._queue.add(recorder, device, tensor, where, dtype, placement, self._want, self._place)
        except torch.OutOfMemoryError:
            return None, "no device memory was left to summarise it"
        if self._stores:
            self._store(row, tensor, dtype, tuple(where[1]), phase, slot)
        storage = storage_of(tensor)
        if not (self._distrusted and storage_ptr(storage) in self._distrusted):
            self._memo[key] = row, self._references.to(storage), 0
        return row

    def _meta(self, tensor: Tensor, dtype: str, placement: str | None, phase: str, slot: str) -> Row:
        """Without values there is no row, but where a capture is estimated: then one as a device has it."""
        if not self._sink.options.estimate:
            return None, "a meta tensor holds no values"
        shape, storage = tuple(tensor.shape), storage_of(tensor)
        key = (storage._cdata, tensor.storage_offset(), tensor._version, shape, tensor.stride(), dtype)
        known = self._memo.get(key)
        if known is None or expired(known[1]):
            row = self._sink.recorder.keep(0, dtype, shape, "meta", placement)
            known = self._memo[key] = row, self._references.to(storage), 0
        if self._stores:
            self._store(known[0], tensor, dtype, shape, phase, slot)
        return known[0]

    def _unusual(self, tensor: Tensor, phase: str, slot: str, place: WherePlaced) -> Row:
        """Subclasses: a distributed tensor counts with its local shard, a fake one has no values."""
        local = getattr(tensor, "_local_tensor", None)
        if local is not None:
            held = _placement(tensor)
            self._place = None if place is None else place(local.shape, held)
            text = json.dumps(held) if self._place is None else self._place.text
            return self._plain(_received(local), text, phase, slot)
        if tensor.is_nested:
            return self._odd_dtype_or_layout(tensor, None, phase, slot)
        name = type(tensor).__name__
        if name == "AsyncCollectiveTensor":
            return self._plain(_received(tensor), None, phase, slot)
        if name in ("FakeTensor", "FunctionalTensor") or hasattr(tensor, "fake_mode"):
            return None, f"{name}: no values"
        if isinstance(tensor, nn.Parameter) or type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__:
            return self._plain(tensor, None, phase, slot)
        return None, f"{name}: a tensor subclass with its own storage"

    def _odd_dtype_or_layout(self, tensor: Tensor, placement: str | None, phase: str, slot: str) -> Row:
        """A stated, lossless fallback where there is one: what the tensor is made of."""
        if tensor.is_nested:
            return self._instead(tensor.values(), "nested: its packed values", placement, phase, slot)
        layout = str(tensor.layout).removeprefix("torch.")
        if tensor.layout is torch.sparse_coo:
            return self._instead(tensor._values(), f"{layout}: its stored values", placement, phase, slot)
        if layout.startswith("sparse"):
            return self._instead(tensor.values(), f"{layout}: its stored values", placement, phase, slot)
        if tensor.is_quantized:
            return self._instead(tensor.int_repr(), "quantised: its integers", placement, phase, slot)
        if tensor.layout is not torch.strided:
            return None, f"layout {layout} is not supported"
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.is_contiguous() or tensor.element_size() == 1:
            flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()
            return self._instead(flat.view(torch.uint8), f"{name}: its bytes", placement, phase, slot)
        return None, f"dtype {name} is supported only where it is contiguous"

    def _instead(self, tensor: Tensor, reason: str, placement: str | None, phase: str, slot: str) -> Row:
        row = self._plain(tensor.detach(), placement, phase, slot)
        return (row, reason) if isinstance(row, int) else (row[0], f"{reason}; {row[1]}")

    # -- values ------------------------------------------

    def _store(
        self, row: int, tensor: Tensor, dtype: str, shape: tuple[int, ...], phase: str, slot: str
    ) -> None:
        if self._wanted(phase, slot, dtype, self._kind):
            self._store_bytes(row, tensor, dtype, shape, phase, slot)

    def keep_values(self, row: int, tensor: Tensor, phase: str, slot: str) -> None:
        """Keep the values of one row, independently of other rows."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        spec = CODES.get(tensor.dtype)
        if spec is not None and tensor.layout is _STRIDED and not tensor.is_nested:
            self._store_bytes(row, tensor, spec[1], tuple(tensor.shape), phase, slot)

    def _store_bytes(
        self, row: int, tensor: Tensor, dtype: str, shape: tuple[int, ...], phase: str, slot: str
    ) -> None:
        recorder = self._sink.recorder
        if recorder.has_values(row):
            return
        if recorder.counts_values or not tensor.numel():
            data: memoryview | Pieces = memoryview(b"")
        else:
            pieces = None if tensor.is_cpu else self._queue.values_of(tensor.detach())
            data = pieces or bytes_of(tensor.detach().cpu().contiguous()).data
        try:
            recorder.store_values(row, f"{phase}.{slot}", dtype, shape, data)
        except torch.OutOfMemoryError:
            self._sink.limit(
                "values are missing of some tensors: no memory was left to bring them to the host"
            )

    # -- what is known no longer holds ------------------------------------------

    def forget(self) -> None:
        """Memory may have been written behind the version counter: optimizers, collectives, custom
        operations."""
        self._forget_rows()
        self._carried.clear()

    def _forget_rows(self) -> None:
        with self._lock:
            self._memo.clear()
            self._references.clear()

    def forget_devices(self) -> None:
        """The same where no look at the memory itself would tell."""
        if self._queue.paths():
            self.forget()

    def distrust(self, holder: Tensor | torch.UntypedStorage) -> None:
        """The program has taken hold of this memory: from now on it is summarised every time."""
        if isinstance(holder, Tensor):
            if holder.layout is not _STRIDED or holder.__class__ not in _PLAIN_TYPES or holder.is_nested:
                return
            holder = storage_of(holder)
        if holder.device.type == "meta":  # of fake tensors too, as those with which DTensor works out shapes
            return
        self._distrusted[storage_ptr(holder)] = StorageReference(holder)
        self._forget_rows()
        self._carried.clear()

    def end_step(self) -> None:
        """Rows belong to a step: forget them all."""
        self._forget_rows()
        self._distrusted = {p: r for p, r in self._distrusted.items() if not r.expired()}
        self._queue.forget()

    def to_host(self) -> None:
        """Bring what is queued on devices into its rows: one transfer a device."""
        self._filled(self._queue.take(), self._sink.recorder)

    def on_its_way(self, recorder: Recorder | None, scalars: dict[str, object]) -> OnItsWay | None:
        """Rows and scalars, started on their way to the host; None where the host would have to wait."""
        if not self._queue.lets_the_host_go_on(scalars):
            return None
        step, numbers = self._queue.take(), self._queue.scalars(scalars)

        def arrived() -> dict[str, Any]:
            if recorder is not None:
                self._filled(step, recorder)
            return numbers()

        return arrived

    def _filled(self, step: QueuedStep, recorder: Recorder) -> None:
        num_lost, errors = step.fill(recorder)
        for error in errors:
            self._sink.failed("a summary on a device", error)
        if num_lost and not errors:
            self._sink.limit(f"{num_lost} tensors have no summary: no device memory was left to compute it")

    def launch(self) -> None:
        """The program goes on: what was queued on devices may change."""
        self._queue.launch()

    def number(self, value: Tensor) -> Callable[[], Tensor]:
        """A number on a device, started on its way to the host; what returns waits for it."""
        return self._queue.number(value)

    def paths(self) -> dict[str, str]:
        """What summarised the tensors of each device that is not the CPU."""
        return self._queue.paths()

    def digest(self, tensors: list[Tensor]) -> Any:
        """Order-sensitive digest of several tensors, or None where it would cost a synchronisation."""
        total, out = 0, np.zeros(1, SUMMARY_DTYPE)
        for tensor in tensors:
            spec = CODES.get(tensor.dtype)
            plain = tensor.__class__ in _PLAIN_TYPES and tensor.device.type == "cpu" and AVAILABLE
            if spec is None or not plain or in_transform(tensor) or is_freed(tensor):
                return None
            strides = None if tensor.is_contiguous() else tensor.stride()
            address = out.ctypes.data
            kernels.summarise(data_ptr(tensor), tuple(tensor.shape), strides, spec[0], HAS_DIGEST, address)
            total = (total * 0x9E3779B97F4A7C15 + int(out["digest"][0])) % (1 << 64)
        return total


def _long_way(rows: object, tensor: Tensor) -> int:
    return -1


def take_small(want: int, limit: int) -> Take:
    """How tensors of fewer than ``limit`` elements become rows, read through DLPack's exchange table.

    Older versions of torch hand out no such table, and a newer one may be of another form: all tensors then
    go the long way.
    """
    table = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if not AVAILABLE or table is None:
        return _long_way
    try:
        take: Take = kernels.Source(table, _PLAIN_TYPES, Tensor.is_neg, want, limit).take
    except ValueError:
        return _long_way
    return take


class StorageReferences:
    """To the memory that tensors lived in, as ``StorageReference`` but given up together, and numbers: an
    object for each would be one more that Python's search for garbage visits."""

    __slots__ = ("_pointers",)

    def __init__(self) -> None:
        self._pointers: list[int] = []

    def to(self, storage: torch.UntypedStorage) -> int:
        """A number that ``memory.expired`` takes until ``clear``."""
        pointer: int = weak_reference(storage)
        self._pointers.append(pointer)
        return pointer

    def clear(self) -> None:
        """Give them up."""
        pointers, self._pointers = self._pointers, []
        for pointer in pointers:
            forget_reference(pointer)

    def __del__(self) -> None:
        self.clear()


class StorageReference:
    """Tells whether the memory a tensor lived in has been freed, without keeping it alive."""

    __slots__ = ("_pointer",)

    def __init__(self, storage: object) -> None:
        self._pointer = weak_reference(storage)

    def expired(self) -> bool:
        return bool(expired(self._pointer))

    def __del__(self) -> None:
        forget_reference(self._pointer)


def _placement(tensor: Any) -> dict[str, object]:
    """Where a distributed tensor's shard lies in the whole."""
    home = "torch.distributed.tensor" if torch.__version__ >= "2.5" else "torch.distributed._tensor"
    place = importlib.import_module(home + "._utils").compute_local_shape_and_global_offset
    mesh = tensor.device_mesh
    _, offset = place(tensor.shape, mesh, tensor.placements)
    return {
        "mesh": dict(zip(mesh.mesh_dim_names or range(mesh.ndim), mesh.shape, strict=True)),
        "placements": [str(p) for p in tensor.placements],
        "global_shape": list(tensor.shape),
        "offset": list(offset),
    }


def _received(tensor: Tensor) -> Tensor:
    """What a collective that is under way gives: torch waits for it before the first use, which this is."""
    wait = getattr(tensor, "trigger_wait", None)
    if wait is None:
        return tensor
    with torch.no_grad():
        done: Tensor = wait()
    return done
