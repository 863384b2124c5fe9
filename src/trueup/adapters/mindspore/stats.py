"""From a tensor to its row of summaries.

On the CPU one C pass over the tensor's own memory; elsewhere the values are brought to the host first,
because not every device has kernels for the statistics. MindSpore runs operations ahead of Python: asking for
the memory waits for what is to be written there, and changes nothing of it.
"""

from __future__ import annotations

import ctypes
import math

import mindspore
import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from trueup.adapters.base import Row, Sink
from trueup.adapters.choosing import Choosing
from trueup.adapters.placing import TensorPlace, WherePlaced
from trueup.numerics._native import AVAILABLE, kernels, summarise_by_definition
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS, SUMMARY_DTYPE

_SPECIAL = {"Float8E4M3FN": "float8_e4m3fn", "Float8E5M2": "float8_e5m2"}
_NAMES: dict[object, tuple[int, str, int] | None] = {}
_DEVICES: dict[object, str] = {}
"""what MindSpore calls a device -> ``cpu``, ``ascend`` or ``gpu``"""


def dtype_name(dtype: object) -> str:
    """The common name of a MindSpore dtype: ``Float32`` is ``float32``."""
    return _SPECIAL.get(str(dtype), str(dtype).lower())


def _spec(dtype: object) -> tuple[int, str, int] | None:
    """Code, name and bytes an element; None for a dtype without statistics."""
    try:
        return _NAMES[dtype]
    except KeyError:
        name = dtype_name(dtype)
        spec = DTYPES.get(name)
        _NAMES[dtype] = found = None if spec is None else (spec.code, name, spec.itemsize)
        return found


class Summariser(Choosing):
    """Rows for the tensors of one process."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._scratch = np.zeros(1, SUMMARY_DTYPE)
        self._written = np.zeros(1, SUMMARY_DTYPE)
        """where a row is written; the engine lets one thread at a time come there"""
        if not AVAILABLE:
            sink.limit("the C kernel is not built: summaries are computed in numpy, many times slower")

    def row(
        self, tensor: Tensor, phase: str, slot: str, kind: str = "module", place: WherePlaced = None
    ) -> Row:
        """Row number of the tensor's summary; with a reason where there is none.

        Args:
            tensor: of any kind.
            phase: of the record.
            slot: of the record.
            kind: the call's: values of module calls may be wanted where others are not.
            place: tells from its shape where a tensor lies in its whole; None: whole
        """
        spec = _spec(tensor.dtype)
        if spec is None:
            return None, f"dtype {dtype_name(tensor.dtype)} is not supported"
        code, dtype, _ = spec
        recorder = self._sink.recorder
        shape = tensor.shape
        device = _device(tensor)
        address = self._written.ctypes.data
        self._summarise(tensor, code, dtype, shape, self._want, address, device)
        part = None if place is None or not AVAILABLE else place(shape)
        placement = None if part is None else part.text
        if self._dedupe and device == "cpu":
            row = recorder.commit(address, dtype, shape, placement)
        else:
            row = recorder.keep(address, dtype, shape, device, placement)
        if part is not None and self._want & HAS_SKETCH:
            recorder.view(row)["sketch"] = _sketch_in_place(tensor, code, dtype, part)
        if self._stores and self._wanted(phase, slot, dtype, kind):
            self.keep_values(row, tensor, phase, slot)
        return row

    def _summarise(
        self,
        tensor: Tensor,
        code: int,
        dtype: str,
        shape: tuple[int, ...],
        want: int,
        address: int,
        device: str | None = None,
    ) -> None:
        if AVAILABLE and (device or _device(tensor)) == "cpu":
            strides = None if tensor.is_contiguous() else tuple(tensor.stride())
            pointer = tensor.data_ptr() if tensor.size else 0
            kernels.summarise(pointer, shape, strides, code, want, address)
            return
        values = host_bytes(tensor)
        if AVAILABLE:
            kernels.summarise(values.ctypes.data, shape, None, code, want, address)
        else:
            array = values.view(DTYPES[dtype].storage).reshape(shape)
            summary = summarise_by_definition(array, want, dtype)
            ctypes.memmove(address, summary.tobytes(), SUMMARY_DTYPE.itemsize)

    # -- values ------------------------------------------

    def keep_values(self, row: int, tensor: Tensor, phase: str, slot: str) -> None:
        """Keep the values of one row, independently of other rows."""
        recorder = self._sink.recorder
        spec = _spec(tensor.dtype)
        if spec is None or recorder.has_values(row):
            return
        recorder.store_values(row, f"{phase}.{slot}", spec[1], tensor.shape, host_bytes(tensor).data)

    # -- the session's other questions ------------------------------------------

    def end_step(self) -> None:
        """Nothing is kept from one tensor to the next."""

    def to_host(self) -> None:
        """Nothing is left on a device."""

    def digest(self, tensors: list[Tensor]) -> int | None:
        """Order-sensitive digest of several tensors; None without the kernel."""
        if not AVAILABLE:
            return None
        total = 0
        for tensor in tensors:
            spec = _spec(tensor.dtype)
            if spec is None:
                return None
            self._summarise(tensor, spec[0], spec[1], tensor.shape, HAS_DIGEST, self._scratch.ctypes.data)
            total = (total * 0x9E3779B97F4A7C15 + int(self._scratch["digest"][0])) % (1 << 64)
        return total

    def norm(self, tensors: list[Tensor]) -> float | None:
        """L2 norm over several tensors together; None where one has no statistics."""
        total = 0.0
        for tensor in tensors:
            spec = _spec(tensor.dtype)
            if spec is None:
                return None
            address = self._scratch.ctypes.data
            self._summarise(tensor, spec[0], spec[1], tensor.shape, HAS_STATISTICS, address)
            total += float(self._scratch["l2_norm"][0]) ** 2
        return math.sqrt(total) if total == total else total


def _sketch_in_place(tensor: Tensor, code: int, dtype: str, part: TensorPlace) -> NDArray[np.float64]:
    """That of a part, as it adds to the sketch of the whole."""
    storage = DTYPES[dtype].storage
    local = host_bytes(tensor).view(storage).reshape(part.local)
    out = np.zeros(1, SUMMARY_DTYPE)
    total = np.zeros_like(out["sketch"][0], np.float64)
    for box, offset in part.boxes:
        view = local[box]
        strides = tuple(stride // view.itemsize for stride in view.strides)
        kernels.summarise(
            view.ctypes.data, view.shape, strides, code, HAS_SKETCH, out.ctypes.data, part.whole, offset
        )
        total += out["sketch"][0]
    return total


def host_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """The values in row-major order as bytes (uint8) on the host; a copy."""
    spec = _spec(tensor.dtype)
    itemsize = 1 if spec is None else spec[2]
    if tensor.size == 0:
        return np.zeros(0, np.uint8)
    if _device(tensor) == "cpu":
        with mindspore._no_grad():
            whole = tensor if tensor.is_contiguous() else tensor.contiguous()
        memory = (ctypes.c_uint8 * (tensor.size * itemsize)).from_address(whole.data_ptr())
        return np.frombuffer(bytes(memory), np.uint8)
    values: NDArray[np.uint8] = np.ascontiguousarray(tensor.asnumpy()).reshape(-1).view(np.uint8)
    return values


def is_on_host(tensor: Tensor) -> bool:
    """Whether the values lie in host memory."""
    return _device(tensor) == "cpu"


def _device(tensor: Tensor) -> str:
    """``cpu``, ``ascend`` or ``gpu``."""
    reported = tensor.device
    found = _DEVICES.get(reported)
    if found is None:
        kind = str(reported).partition(":")[0].lower()
        found = _DEVICES[reported] = kind if kind in ("ascend", "gpu") else "cpu"
    return found
