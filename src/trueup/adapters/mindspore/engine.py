"""MindSpore's part of the engine: how cells, parameters and tensors are asked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn

from trueup.adapters.base import Sink
from trueup.adapters.called import Described
from trueup.adapters.engine import BaseEngine, ThreadState
from trueup.adapters.mindspore import long_run
from trueup.adapters.mindspore.labels import Labels
from trueup.adapters.mindspore.long_run import LongRun
from trueup.adapters.mindspore.overflow import OverflowWatch
from trueup.adapters.mindspore.perturb import Perturbation
from trueup.adapters.mindspore.stats import Summariser, dtype_name, host_bytes
from trueup.adapters.mindspore.training import Training
from trueup.numerics.content import content_hash
from trueup.numerics.dtypes import DTYPES

if TYPE_CHECKING:
    from trueup.adapters.mindspore.forcing import Forcing
    from trueup.adapters.mindspore.measures import Measures

TRANSPARENT = (
    "TrainOneStepCell",
    "TrainOneStepWithLossScaleCell",
    "WithLossCell",
    "WithGradCell",
    "WithEvalCell",
    "ForwardValueAndGrad",
    "DataParallel",
    "_RecomputeCell",
    "_WrapCell",
)
"""cells that only wrap a model or a part of it: not sites themselves, so that a wrapped run, or one that
recomputes, has the sites of a bare one"""


class _Quiet:
    """Capture's own operations on tensors pass through the patched functions unseen."""

    __slots__ = ("_local",)

    def __init__(self, local: ThreadState) -> None:
        self._local = local

    def __enter__(self) -> None:
        self._local.opaque += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._local.opaque -= 1


class Engine(BaseEngine[nn.Cell, Tensor]):
    """State behind the hooks of one process."""

    summariser: Summariser
    forcing: Forcing | None
    perturbation: Perturbation | None
    long_run: LongRun | None
    measures: Measures | None
    overflow: OverflowWatch | None
    OWN_PARAMETERS = "_params"

    TRANSPARENT = TRANSPARENT
    hidden = (os.path.dirname(mindspore.__file__) + os.sep,)
    machinery = nn.Cell._complex_call.__code__

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._quiet = _Quiet(self.local)
        self.training = Training(self)
        self.adopt(sink)

    def adopt(self, sink: Sink) -> None:
        """Take the choices of the session (again, after a hot switch)."""
        super().adopt(sink)
        self.summariser = Summariser(sink)
        self.overflow = OverflowWatch(self) if sink.options.task.value == "overflow_check" else None
        self.labels = Labels() if sink.options.with_labels else None

    def perturbed(self, seed: int) -> Perturbation:
        """Changes of weights and inputs by rounding, at random from ``seed``."""
        return Perturbation(seed)

    def let_go(self) -> None:
        """Change nothing of the program any more: the session is over."""
        super().let_go()
        long_run.end()

    def quiet(self) -> _Quiet:
        """A context in which capture's own operations on tensors are not seen."""
        return self._quiet

    def end_step(self) -> None:
        """Forget everything tied to the step under way."""
        self.training.end_step()
        if self.labels is not None:
            self.labels.forget()
        super().end_step()

    @staticmethod
    def requires_grad(tensor: Tensor) -> bool:
        """Whether a gradient will come for it: every tensor of MindSpore claims to want one."""
        if isinstance(tensor, Parameter):
            return bool(tensor.requires_grad)
        return tensor._grad_node is not None

    def described(self, tensor: Tensor) -> Described:
        """Dtype and shape."""
        return dtype_name(tensor.dtype), list(tensor.shape)

    # -- how MindSpore's things are asked ------------------------------------------

    def modules_below(self, module: nn.Cell) -> Iterator[tuple[str, nn.Cell]]:
        """The cell itself and every cell below it, once each, by name."""
        seen: set[int] = set()
        todo = [("", module)]
        while todo:
            name, cell = todo.pop(0)
            if id(cell) in seen:
                continue
            seen.add(id(cell))
            yield name, cell
            inside = ((_joined(name, key), inner) for key, inner in cell._cells.items())
            todo[:0] = [(place, inner) for place, inner in inside if inner is not None]

    def parameters_below(self, module: nn.Cell) -> Iterator[tuple[str, Parameter]]:
        """Every parameter by its place in the tree of cells, tied ones under each of their names."""
        for name, cell in self.modules_below(module):
            for key, parameter in cell._params.items():
                if parameter is not None:
                    yield _joined(name, key), parameter

    def fingerprint(self, module: nn.Cell) -> list[int]:
        """Identities of all cells and parameters below, in a fixed order."""
        found: list[int] = []
        for _, cell in self.modules_below(module):
            found.append(id(cell))
            found.extend(map(id, cell._params.values()))
        return found

    def bare(self, module: nn.Cell) -> nn.Cell:
        """The model inside a wrapper that only forwards."""
        while type(module).__name__ in TRANSPARENT:
            inner = getattr(module, "network", None) or getattr(module, "_backbone", None)
            if inner is None:
                break
            module = inner
        return module

    def class_of(self, module: nn.Cell) -> str:
        """Name of the class the program wrote."""
        return type(module).__name__

    def table_row(self, parameter: Parameter) -> dict[str, object] | None:
        """shape, dtype, numel and requires_grad of a parameter, and the name MindSpore has it under."""
        if not parameter.has_init or parameter.init_mode is None:
            return {
                "shape": list(parameter.shape),
                "dtype": dtype_name(parameter.dtype),
                "numel": int(parameter.size),
                "requires_grad": bool(parameter.requires_grad),
            }
        return None

    def content_hash(self, parameter: Parameter) -> int | None:
        """Hash of the values in any order; None for anything but a floating point weight."""
        name = dtype_name(parameter.dtype)
        if name not in DTYPES or DTYPES[name].kind != "float":
            return None
        values = host_bytes(parameter).view(np.dtype(DTYPES[name].storage))
        return content_hash(values, name)

    def sum_of(self, first: Tensor, second: Tensor) -> Tensor:
        """Sum of two gradients, outside any graph; numpy adds faster than the CPU's kernel and alike."""
        if first.dtype == mindspore.float32 and str(first.device).startswith("CPU"):
            return Tensor(first.asnumpy() + second.asnumpy())
        with mindspore._no_grad():
            return first + second


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
