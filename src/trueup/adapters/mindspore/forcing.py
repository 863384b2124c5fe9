"""How a replay reads, compares and overwrites MindSpore's tensors (``adapters.forcing``).

On the CPU values are written straight into a tensor's memory, which its graph does not notice. Elsewhere they
are copied by an operation outside the graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn
from numpy.typing import NDArray

from trueup.adapters.base import Slotted
from trueup.adapters.forcing import BaseForcing, shape_differs
from trueup.adapters.forcing_plan import ForcedRecord, HostValues
from trueup.adapters.mindspore.gradients import BackwardNode, consumers_of, edge_of
from trueup.adapters.mindspore.stats import dtype_name, host_bytes, is_on_host
from trueup.numerics.dtypes import DTYPES, float64_from_array
from trueup.types.arrays import Array
from trueup.types.codes import LeftFree
from trueup.types.reason import Reason, reason

if TYPE_CHECKING:
    from trueup.adapters.mindspore.engine import Engine

_UNWRITABLE = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""numpy has no such type to round to"""


class Forcing(BaseForcing[nn.Cell, Tensor]):
    """A replay in a MindSpore program."""

    engine: Engine

    def __init__(self, engine: Engine, folder: Path) -> None:
        super().__init__(engine, folder)
        self._fixed: set[int] = set()
        """where parameters live"""

    # -- values ------------------------------------------

    def incomparable(self, local: Tensor, entry: ForcedRecord) -> Reason | None:
        """Why the values cannot be compared at all; None: they can."""
        if dtype_name(local.dtype) not in DTYPES:
            return reason(LeftFree.DTYPE, dtype=dtype_name(local.dtype))
        if entry.dtype != dtype_name(local.dtype) and dtype_name(local.dtype) in _UNWRITABLE:
            return reason(LeftFree.ROUNDING, target=dtype_name(local.dtype), reference=entry.dtype)
        if tuple(local.shape) != entry.shape:
            return shape_differs(local.shape, entry)
        return None

    def dtype_name(self, local: Tensor) -> str:
        """The dtype's common name."""
        return dtype_name(local.dtype)

    def host_values(self, local: Tensor) -> HostValues:
        """The program's values, row-major on the host."""
        return HostValues(data=host_bytes(local), dtype=dtype_name(local.dtype), shape=tuple(local.shape))

    def wanted(self, local: Tensor, expected: HostValues) -> NDArray[np.uint8]:
        """The reference's values in the tensor's dtype, as row-major bytes."""
        name = dtype_name(local.dtype)
        if expected.dtype == name:
            return expected.data
        kinds = [DTYPES[one] for one in (expected.dtype, name)]
        values: Array = expected.data.view(np.dtype(kinds[0].storage))
        if {kind.kind for kind in kinds} <= {"int", "uint"}:
            return _bytes_of(values.astype(kinds[1].storage))
        wide = float64_from_array(values, expected.dtype)
        if kinds[1].kind == "bool":
            return np.asarray(wide != 0, np.uint8)
        with np.errstate(over="ignore", invalid="ignore"):
            return _bytes_of(wide.astype(kinds[1].storage))

    def given(self, local: Tensor, expected: HostValues) -> Tensor | None:
        """The reference's values in their own dtype; None where numpy has no such type."""
        if expected.dtype in _UNWRITABLE:
            return None
        array: Array = expected.data.view(np.dtype(DTYPES[expected.dtype].storage))
        return Tensor(array.reshape(expected.shape).copy())

    def same_bits(self, local: Tensor, wanted: NDArray[np.uint8]) -> bool:
        """Whether both hold the same bits."""
        return np.array_equal(host_bytes(local), wanted)

    def written_copy(self, tensor: Tensor, wanted: NDArray[np.uint8]) -> Tensor:
        """Another tensor like this one, holding ``wanted``."""
        array = wanted.view(np.dtype(DTYPES[dtype_name(tensor.dtype)].storage)).reshape(tensor.shape)
        if dtype_name(tensor.dtype) not in _UNWRITABLE:
            return Tensor(array.copy(), tensor.dtype)
        with mindspore._no_grad():
            copy: Tensor = tensor.copy()
        _into_memory(copy, wanted)
        return copy

    def write(self, tensor: Tensor, wanted: NDArray[np.uint8]) -> None:
        """Put ``wanted`` into the tensor's memory, unseen by its graph."""
        if is_on_host(tensor):
            _into_memory(tensor, wanted)
            return
        with mindspore._no_grad():
            tensor.copy_(self.written_copy(tensor, wanted))

    # -- what a tensor is ------------------------------------------

    def note_fixed(self, module: nn.Cell) -> None:
        """Remember where the parameters of a root live."""
        self._fixed |= {p.data_ptr() for _, p in self.engine.parameters_below(module) if is_on_host(p)}
        self._fixed.discard(0)

    def is_fixed(self, tensor: Tensor) -> bool:
        """Whether it is a parameter, or a view that begins where one does."""
        return isinstance(tensor, Parameter) or (is_on_host(tensor) and tensor.data_ptr() in self._fixed)

    def is_foreign(self, tensor: Tensor) -> bool:
        """Made by no operation of this step, as far as its graph tells."""
        return tensor._grad_node is None or tensor._grad_node.is_leaf()

    def with_leaves_replaced(
        self, args: tuple[object, ...], kwargs: dict[str, object], chosen: Callable[[object], object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments with what is chosen for each of their leaves, asked in their order."""

        def replaced(leaf: object) -> object:
            if isinstance(leaf, (tuple, list)) and not hasattr(leaf, "_fields"):
                return type(leaf)(replaced(inner) for inner in leaf)
            if isinstance(leaf, dict):
                return {key: replaced(inner) for key, inner in leaf.items()}
            return chosen(leaf)

        return tuple(map(replaced, args)), {name: replaced(value) for name, value in kwargs.items()}

    # -- gradients ------------------------------------------

    def no_graph(self) -> AbstractContextManager[object]:
        """A context in which operations make no graph."""
        context: AbstractContextManager[object] = mindspore._no_grad()
        return context

    def has_gradient(self, tensor: Tensor) -> bool:
        """Whether a gradient will arrive at an output."""
        return tensor._grad_node is not None and not tensor._grad_node.is_leaf()

    def made_by(self, tensor: Tensor) -> tuple[BackwardNode, int]:
        """The backward node of the operation that made a tensor, and which of its outputs it is."""
        return tensor._grad_node, tensor._output_index

    def identity(self, node: Any) -> int:
        """MindSpore numbers its nodes."""
        return int(node._unique_id())

    def uses(self, tensor: Tensor, results: Slotted[Tensor]) -> bool:
        """Whether one of the other results was made from the tensor."""
        own = tensor._grad_node._unique_id()
        others = [(w, t) for w, t in results if self.has_gradient(t) and t._grad_node._unique_id() != own]
        return bool(others) and bool(consumers_of([edge_of("output", tensor)], others))

    def norm(self, gradient: Tensor) -> float:
        """L2 norm."""
        values = self.host_values(gradient)
        array = values.data.view(np.dtype(DTYPES[values.dtype].storage))
        return float(np.linalg.norm(float64_from_array(array, values.dtype)))

    def zeros_like(self, gradient: Tensor) -> Tensor:
        """Zeros of its shape and dtype."""
        return self.written_copy(gradient, np.zeros(int(gradient.size) * gradient.itemsize, np.uint8))

    def less(self, wanted: Tensor, passed: Tensor, like: Tensor) -> Tensor:
        """``wanted - passed``, as exactly as ``like``'s dtype holds it."""
        sides = (self.host_values(side) for side in (wanted, passed))
        first, second = (
            float64_from_array(side.data.view(np.dtype(DTYPES[side.dtype].storage)), side.dtype)
            for side in sides
        )
        exact = HostValues(data=(first - second).view(np.uint8), dtype="float64", shape=tuple(like.shape))
        return self.written_copy(like, self.wanted(like, exact))


def _bytes_of(values: Array) -> NDArray[np.uint8]:
    return values.view(np.uint8)


def _into_memory(tensor: Tensor, wanted: NDArray[np.uint8]) -> None:
    """Write row-major bytes through the tensor's strides."""
    if not wanted.size:
        return
    pointer = tensor.data_ptr()  # waits for what is still to be written there
    if tensor.is_contiguous():
        ctypes.memmove(pointer, wanted.ctypes.data, wanted.size)
        return
    itemsize = int(tensor.itemsize)
    strides = [int(step) * itemsize for step in tensor.stride()]
    extent = sum((size - 1) * step for size, step in zip(tensor.shape, strides, strict=True)) + itemsize
    memory = np.frombuffer((ctypes.c_uint8 * extent).from_address(pointer), f"u{itemsize}", count=1)
    place = np.lib.stride_tricks.as_strided(memory, tensor.shape, strides, writeable=True)
    place[...] = wanted.view(f"u{itemsize}").reshape(tensor.shape)


def forcing_from_options(engine: Engine) -> Forcing | None:
    """What a replay needs, where the session's options ask for one."""
    folder = engine.sink.options.replay
    return None if folder is None else Forcing(engine, Path(folder))
