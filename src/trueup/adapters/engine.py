"""What the hooks of every framework share: who is calling, what a tensor's row is, what modules are called.

A framework's own engine says how its modules, parameters and tensors are asked; nothing here imports one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import CodeType, FrameType

from trueup.adapters.base import (
    CallScope,
    ChangesRun,
    ForcesValues,
    MeasuresModules,
    ModuleT,
    PerturbsRun,
    Recorder,
    Row,
    Sink,
    SummarisesTensors,
    TensorT,
    Unfinished,
    WatchesOverflow,
)
from trueup.adapters.called import Called, Described
from trueup.adapters.code import ReachableCode
from trueup.adapters.names import NamedModules
from trueup.adapters.placing import Placing, TensorPlace
from trueup.adapters.reentrant import Reentrant
from trueup.adapters.stacks import Stacks
from trueup.numerics.rows import Rows
from trueup.types.layout import Layout
from trueup.types.trace import Root


class ModuleFrame:
    """One module call under way in one thread."""

    __slots__ = (
        "began",
        "call",
        "counts",
        "kept",
        "mode",
        "name",
        "path",
        "recorder",
        "sender",
        "stack",
        "stood",
        "without_gradients",
    )

    def __init__(
        self,
        call: int,
        name: str,
        mode: str,
        stack: int | None,
        path: tuple[str, ...],
        kept: bool,
        recorder: Recorder,
    ) -> None:
        self.call = call
        self.sender = call
        """the call that gradients of this one are recorded under"""
        self.without_gradients = False
        self.recorder = recorder
        self.began = 0
        """number of the first autograd node made in it"""
        self.stood: int | None = None
        """where the random generators stood as it began; None where nobody looked"""
        self.name = name
        self.mode = mode
        self.stack = stack
        self.path = path
        self.kept = kept
        self.counts: dict[str, int] = {}


class ThreadState(threading.local):
    """Per-thread: the module calls under way, and how deep in opaque code we are."""

    def __init__(self) -> None:
        self.frames: list[ModuleFrame] = []
        self.depth = 0
        self.opaque = 0
        self.has_mode = False
        self.in_function = False
        self.in_backward = False


class BaseEngine(NamedModules[ModuleT, TensorT]):
    """State behind the hooks of one process, as far as no framework is in it."""

    MAX_EVALUATION_ROOTS = 8
    """evaluation forwards captured in one step; the rest only run"""
    TRANSPARENT: tuple[str, ...] = ()
    """classes that only wrap a model: not sites themselves"""
    hidden: tuple[str, ...] = ()
    """folders whose frames are left out of call stacks"""
    machinery: CodeType
    """inside a captured module call, the frame where the framework's own code begins"""
    requires_grad: Callable[[TensorT], bool]
    quiet: Callable[[], AbstractContextManager[object]]
    """a context in which capture's own operations on tensors are not seen"""
    summariser: SummarisesTensors[TensorT]
    take: Callable[[Rows, TensorT], int] = staticmethod(lambda rows, tensor: -1)
    """row of a small tensor where there is a short way for it, in one step that no other thread can
    interrupt; else -1"""
    overflow: WatchesOverflow[TensorT] | None = None

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self.sink = sink
        self._placing: tuple[Layout, Placing] | None = None
        self.local = ThreadState()
        self.code = ReachableCode(self.hidden)
        """functions of the program that a step can reach"""
        self.stacks = Stacks(self.hidden, self.code.frame)
        self.boundary: CodeType = (lambda: None).__code__
        self.lock = threading.RLock()
        """one call or record at a time: models run in threads, and the kernel lets other threads go on"""
        self.reentrant = Reentrant()
        self.opaque_modules: dict[str, str] = {}
        self.wrapped_by: dict[str, None] = {}
        self.in_optimizer = False
        self._top_counts: dict[str, int] = {}
        self._top_microbatch = -1
        self._global_counts: dict[str, int] = {}
        self._parameter_calls: dict[int, int] = {}
        self.evaluation_roots = 0
        self.unfinished: dict[int, Unfinished] = {}
        self.forcing: ForcesValues[TensorT] | None = None
        """in a replay, what puts the reference's values in place of the program's (``forcing.Forcing``)"""
        self.perturbation: PerturbsRun | None = None
        """in a noise rerun, what changes weights and inputs by rounding (the framework's ``perturb``)"""
        self.measures: MeasuresModules[ModuleT] | None = None
        """where the run is watched, what measures it (the framework's ``measures.Measures``)"""
        self.long_run: ChangesRun | None = None
        """what a person wants changed in the run; None: nothing"""
        self.watched: Mapping[int, object] = {}
        """modules whose outputs are measured, by identity"""
        self.replicas: tuple[int, ...] = ()
        """ranks that hold the same weights, where that is known"""
        self.called = Called()
        """in the first captured step, the functions that modules call"""
        self.groups: dict[str, list[int]] = {}
        """ranks that hold the same weights, or read different batches, as the program's wrapper says"""

    def adopt(self, sink: Sink) -> None:
        """Take the choices of the session (again, after a hot switch)."""
        options = sink.options
        self.sink = sink
        self.modules_on = options.level.value in ("L0", "mix")
        self.api_on = options.level.value in ("L1", "mix")
        self.names_functions = options.functions and options.stacks and not self.api_on
        self.inputs_on = "input" in options.data_mode
        self.outputs_on = "output" in options.data_mode
        self.forward_on = "forward" in options.data_mode
        self.backward_on = "backward" in options.data_mode and options.backward
        self.gradients_on = options.gradients
        self.optimizer_on = options.optimizer
        self.collectives_on = options.collectives
        self.evaluation_on = options.evaluation
        self.scope = sink.scope
        self.stacks_on = options.stacks
        if options.perturb is None or self.perturbation is None or self.perturbation.seed != options.perturb:
            self.perturbation = None if options.perturb is None else self.perturbed(options.perturb)

    def perturbed(self, seed: int) -> PerturbsRun:
        """Changes of weights and inputs by rounding, at random from ``seed``."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Change nothing of the program any more: the session is over."""
        self.perturbation = self.forcing = self.long_run = None

    def sum_of(self, first: TensorT, second: TensorT) -> TensorT:
        """Sum of two gradients, outside any graph."""
        raise NotImplementedError

    def why_without_values(self, tensor: TensorT) -> str | None:
        """A reason to be expected why a tensor cannot be summarised."""
        return None

    # -- calls ------------------------------------------

    def enclosing(self) -> ModuleFrame | None:
        """The module call under way in this thread, if it belongs to the step under way."""
        frames = self.local.frames
        if frames and frames[-1].recorder is self.sink.recorder:
            return frames[-1]
        return None

    def _counts_at_top(self) -> dict[str, int]:
        """Calls of the microbatch inside no module call, by mode and name."""
        if self._top_microbatch != self.sink.microbatch:
            self._top_counts, self._top_microbatch = {}, self.sink.microbatch
        return self._top_counts

    @property
    def sees_functions(self) -> bool:
        """Whether calls of functions are looked at."""
        return self.api_on or self.names_functions

    def described(self, tensor: TensorT) -> Described:
        """Dtype and shape."""
        raise NotImplementedError

    def note_function(
        self, name: str, arguments: str | None, tensors: list[tuple[str, TensorT]], mode: str
    ) -> None:
        """A function is called, of which no tensor is recorded."""
        frame = self.enclosing()
        if (mode if frame is None else frame.mode) != "train" or (frame is None and self.sink.microbatch):
            return
        counts = self._counts_at_top() if frame is None else frame.counts
        given = {where: self.described(tensor) for where, tensor in tensors}
        self.called.note(frame, counts, name, arguments, given)

    def add_call(
        self,
        kind: str,
        name: str,
        type_name: str | None,
        mode: str,
        frame: ModuleFrame | None,
        *,
        opaque: bool = False,
        stack: int | None = None,
        arguments: str | None = None,
    ) -> int:
        """Append one row of calls and return its number."""
        sink = self.sink
        with self.lock:
            number = self._global_counts.get(name, 0)
            self._global_counts[name] = number + 1
            calls = sink.recorder.calls
            if frame is None:
                counts, key, parent = self._counts_at_top(), f"{mode}:{name}", None
            else:
                counts, key, parent = frame.counts, name, frame.call
            ordinal = counts.get(key, 0)
            counts[key] = ordinal + 1
            calls.append(
                (
                    parent,
                    kind,
                    name,
                    type_name,
                    ordinal,
                    sink.microbatch,
                    mode,
                    opaque,
                    stack,
                    arguments,
                    number,
                )
            )
            return len(calls) - 1

    def tensor(
        self, call: int, phase: str, slot: str, tensor: TensorT, microbatch: int | None = None
    ) -> TensorT | None:
        """Append one row of records. Call it in ``quiet``.

        Returns None, but for a gradient in a replay what the program is to go on with in its place.
        """
        sink = self.sink
        if not sink.active:  # capture was disabled in the middle of a call
            return None
        if self.scope is not None and not self._is_in_scope(self.scope, call, phase):
            return None
        if microbatch is None:
            microbatch = sink.microbatch
        recorder = sink.recorder
        row: int | None = self.take(recorder.rows, tensor) if sink.layout is None else -1
        reason: str | None = None
        if row == -1:
            row, reason = self._row(call, phase, slot, tensor)
        recorder.records.append((call, phase, slot, microbatch, row, self.requires_grad(tensor), reason))
        if self.overflow is not None:
            self.overflow.seen(call, phase, slot, row, tensor)
        if self.forcing is None:
            return None
        return self.forcing.seen(call, phase, slot, tensor, row)

    def _row(self, call: int, phase: str, slot: str, tensor: TensorT) -> tuple[int | None, str | None]:
        """Row of a tensor's summary, the long way; with a reason where there is none, or it is special."""
        try:
            with self.lock:
                if self.sink.layout is None:
                    kind = self.kind_of(call) if self.summariser.asks_for_kind else "module"
                    row = self.summariser.row(tensor, phase, slot, kind)
                else:
                    row = self.row_in_layout(call, phase, slot, tensor)
        except Exception as error:
            return None, self._why_not(tensor, slot, error)
        return row if isinstance(row, tuple) else (row, None)

    def kind_of(self, call: int) -> str:
        """``module``, ``api``, ``parameter`` and so on."""
        kind: str = self.sink.recorder.calls.cell(call, "kind")
        return kind

    def row_in_layout(self, call: int, phase: str, slot: str, tensor: TensorT) -> Row:
        """Row of a tensor's summary where a layout was declared, at the tensor's place in the whole one; with
        a reason where there is none, or it is special."""
        layout, calls = self.sink.layout, self.sink.recorder.calls
        assert layout is not None
        if self._placing is None or self._placing[0] is not layout:
            self._placing = layout, Placing(layout, self.sink.rank, self.root_types)
        placing = self._placing[1]
        kind, name = calls.cell(call, "kind"), calls.cell(call, "name")

        def place(shape: tuple[int, ...], held: Mapping[str, object] | None = None) -> TensorPlace | None:
            return placing.of(kind, name, phase, slot, shape, held)

        return self.summariser.row(tensor, phase, slot, kind, place)

    def root_types(self) -> list[Root]:
        """Name and class of every root that lives."""
        living = ((reference(), name) for reference, name in self.roots)
        return [Root(name=name, type=self.class_of(module)) for module, name in living if module is not None]

    def without_values(self, call: int, phase: str, slot: str, tensor: TensorT, reason: str) -> None:
        """Append one row of records for a tensor whose values mean nothing."""
        if self.scope is not None and not self._is_in_scope(self.scope, call, phase):
            return
        row = (call, phase, slot, self.sink.microbatch, None, self.requires_grad(tensor), reason)
        self.sink.recorder.records.append(row)

    def _why_not(self, tensor: TensorT, slot: str, error: Exception) -> str:
        """Why a tensor could not be summarised; what is not to be expected is noted as a failure too."""
        reason = self.why_without_values(tensor)
        if reason is not None:
            return reason
        self.failed(slot, error)
        return f"the summary failed: {type(error).__name__}: {error}"

    def renamed(self, names: dict[str, str]) -> None:
        """In the calls of the step so far too: it shows a part under one name."""
        if not self.sink.active:
            return
        with self.lock:
            calls = self.sink.recorder.calls
            for call in range(len(calls)):
                name = names.get(calls.cell(call, "name"))
                if name is not None and calls.cell(call, "kind") in ("module", "parameter"):
                    calls.put(call, "name", name)
            counts = self._counts_at_top()
            self._global_counts = {names.get(name, name): num for name, num in self._global_counts.items()}
            for key, num in list(counts.items()):
                mode, _, name = key.partition(":")
                if name in names:
                    counts[f"{mode}:{names[name]}"] = num
                    del counts[key]

    def parameter_call(self, parameter: TensorT, name: str) -> int:
        """The call row that stands for a parameter in this step."""
        call = self._parameter_calls.get(id(parameter))
        if call is None:
            call = self.add_call("parameter", name, None, "train", None)
            self._parameter_calls[id(parameter)] = call
        return call

    def call_of_parameter(self, identity: int) -> int | None:
        """The call row of a parameter that this step has recorded, be it in its module just now or not."""
        return self._parameter_calls.get(identity)

    def flush_gradients(self) -> None:
        """What has not come of gradients under way will not come."""
        for sums in list(self.unfinished.values()):
            sums.flush()
        self.unfinished.clear()

    def stack_number(self, depth: int, frame: ModuleFrame | None) -> int:
        """Number of the call stack ``depth`` frames above the caller, on top of the enclosing module
        call's."""
        caller: FrameType | None = sys._getframe(depth + 1)
        if caller is not None and caller.f_code is self.boundary:  # a root is one frame further down
            caller = caller.f_back
        if frame is None:
            return self.stacks.number(caller, None, None, self.sink.recorder.stacks)
        return self.stacks.number(caller, self.machinery, frame.stack, self.sink.recorder.stacks)

    def reached_code(self) -> dict[str, object] | None:
        """The program's functions that the calls so far can reach (``code.ReachableCode``); None where they
        are those
        of the last time."""
        if not self.code.has_grown:
            return None
        roots = [(reference(), name) for reference, name in self.roots]
        named = (
            (".".join(part for part in (name, inner) if part), module)
            for root, name in roots
            if root is not None
            for inner, module in self.modules_below(root)
        )
        return self.code.collect(named)

    def end_step(self) -> None:
        """Forget everything tied to the step under way."""
        self.unfinished = {}
        if self.forcing is not None:
            self.forcing.end_step()
        if self.overflow is not None:
            self.overflow.end_step()
        self._top_counts, self._top_microbatch = {}, -1
        self._global_counts = {}
        self._parameter_calls = {}
        self.forget_what_is_named()
        self.reentrant = Reentrant()
        self.evaluation_roots = 0
        self.stacks.end_step()
        self.summariser.end_step()

    # -- trouble ------------------------------------------

    def in_scope(self, call: int) -> bool:
        """A call begins where capture is restricted: whether anything of it can be wanted."""
        scope = self.scope
        if scope is None:
            return True
        with self.lock:
            return scope.begins(call, self.sink.recorder.calls[call])

    def _is_in_scope(self, scope: CallScope, call: int, phase: str) -> bool:
        with self.lock:
            return scope.takes(call, phase, self.sink.recorder.calls[call])

    def left_scope(self, call: int) -> None:
        """A call has returned to the program, where capture is restricted to a scope."""
        try:
            if self.scope is not None:
                with self.lock:
                    self.scope.returned(call)
        except Exception as error:
            self.failed(f"the end of call {call}", error)

    def is_of_the_run(self) -> bool:
        """Whether what this thread trains is part of the run."""
        return True

    def forward_failed(self) -> None:
        """The program's own exception is leaving the forward of a root."""
        try:
            if self.is_of_the_run():
                self.sink.forward_failed()
        except Exception as error:
            self.failed("an exception of the program", error)

    def failed(self, site: str, error: BaseException) -> None:
        """An error of ours: noted, never raised into the program."""
        self.sink.failed(site, error)
