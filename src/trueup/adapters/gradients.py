"""What hooks on a backward graph do with the gradients they are given; the same in every framework.

A framework's own ``gradients`` finds the nodes and puts these hooks there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from trueup.adapters.base import ModuleT, TensorT
from trueup.adapters.engine import BaseEngine

Slots = tuple[tuple[int, str], ...]
"""(number of the gradient, slot)"""
Gradients = tuple[TensorT | None, ...]
"""of a node's inputs or outputs; None: none came"""


_known_slots: dict[Slots, Slots] = {}


def interned(slots: list[tuple[int, str]]) -> Slots:
    """The same few tuples over and over: one object each, or the garbage collector has thousands to visit."""
    key = tuple(slots)
    return _known_slots.setdefault(key, key)


def uses_of(consumers: Iterable[tuple[object, list[tuple[int, str]]]]) -> dict[str, int]:
    """How many of the nodes that send gradients to inputs send one to each slot."""
    uses: dict[str, int] = {}
    for _, slots in consumers:
        for _, where in slots:
            uses[where] = uses.get(where, 0) + 1
    return uses


class _Records(Generic[ModuleT, TensorT]):
    """Records gradients of one call, as long as the step that made it is under way."""

    __slots__ = ("_call", "_engine", "_microbatch", "_recorder")

    def __init__(
        self, engine: BaseEngine[ModuleT, TensorT], call: int, microbatch: int | None = None
    ) -> None:
        """``microbatch``: the call's, where it is at hand."""
        self._engine = engine
        self._recorder = engine.sink.recorder
        self._call = call
        self._microbatch: int = (
            self._recorder.calls.cell(call, "microbatch") if microbatch is None else microbatch
        )

    def _is_over(self) -> bool:
        sink = self._engine.sink
        return not sink.active or sink.recorder is not self._recorder

    def _record(self, where: str, gradient: TensorT) -> None:
        try:
            if self._is_over():
                return
            with self._engine.quiet():
                self._engine.tensor(self._call, "backward", where, gradient, self._microbatch)
        except Exception as error:
            self._engine.failed(f"gradient {where}", error)


class Arrival(_Records[ModuleT, TensorT]):
    """Tensor hook: the total gradient at an output."""

    __slots__ = ("_where",)

    def __init__(self, engine: BaseEngine[ModuleT, TensorT], call: int, where: str) -> None:
        super().__init__(engine, call)
        self._where = where

    def __call__(self, gradient: TensorT | None) -> None:
        if gradient is not None:  # of a compiled function's output that the loss does not reach from outside
            self._record(self._where, gradient)


class ApiNode(_Records[ModuleT, TensorT]):
    """Node hook of an API call: what arrives at its outputs, what it sends to its inputs."""

    __slots__ = ("_inputs", "_outputs")

    def __init__(
        self, engine: BaseEngine[ModuleT, TensorT], call: int, outputs: Slots, inputs: Slots
    ) -> None:
        super().__init__(engine, call, engine.sink.microbatch)
        self._outputs = outputs
        self._inputs = inputs

    def __call__(self, gradients: Gradients[TensorT], arriving: Gradients[TensorT]) -> None:
        try:
            if self._is_over():
                return
            with self._engine.quiet():
                self._seen(gradients, arriving)
        except Exception as error:  # what a hook raises ends the program's backward
            self._engine.failed(f"gradients of call {self._call}", error)

    def _seen(self, gradients: Gradients[TensorT], arriving: Gradients[TensorT]) -> None:
        engine, call, microbatch = self._engine, self._call, self._microbatch
        for number, where in self._outputs:
            if (gradient := arriving[number]) is not None:
                engine.tensor(call, "backward", where, gradient, microbatch)
        for number, where in self._inputs:
            if (gradient := gradients[number]) is not None:
                engine.tensor(call, "backward", where, gradient, microbatch)
        if engine.overflow is not None and engine.overflow.pending == call:
            kept = [(where, g) for number, where in self._outputs if (g := arriving[number]) is not None]
            engine.overflow.keep(call, "backward", kept)


class Use(Generic[ModuleT, TensorT]):
    """Node hook of one consumer of a call's inputs."""

    __slots__ = ("_slots", "_sums")

    def __init__(self, sums: Sums[ModuleT, TensorT], slots: Slots) -> None:
        self._sums = sums
        self._slots = slots

    def __call__(self, gradients: Gradients[TensorT], _: object) -> None:
        self._sums.add(gradients, self._slots)


class Sums(_Records[ModuleT, TensorT]):
    """Gradient sent to an input over several uses: recorded when the last one has come, or when backward
    ends."""

    __slots__ = ("_left", "_sums", "_uses")

    def __init__(self, engine: BaseEngine[ModuleT, TensorT], call: int, uses: dict[str, int]) -> None:
        super().__init__(engine, call)
        self._uses = uses
        self._left = dict(uses)
        self._sums: dict[str, TensorT] = {}

    def add(self, gradients: Gradients[TensorT], slots: Slots) -> None:
        """One consumer has run."""
        try:
            if self._is_over():
                return
            with self._engine.quiet():
                for number, where in slots:
                    self._add(where, gradients[number])
        except Exception as error:
            self._engine.failed(f"backward input {slots}", error)

    def _add(self, where: str, gradient: TensorT | None) -> None:
        self._left[where] -= 1
        if gradient is not None:
            if self._uses[where] == 1:
                self._record(where, gradient)
                self._left[where] = 1
                return
            known = self._sums.get(where)
            self._sums[where] = gradient if known is None else self._engine.sum_of(known, gradient)
            self._engine.unfinished[id(self)] = self
        if self._left[where] == 0:
            self._finish(where)

    def _finish(self, where: str) -> None:
        self._left[where] = self._uses[where]
        total = self._sums.pop(where, None)
        if total is not None:
            self._record(where, total)

    def flush(self) -> None:
        """Backward is over: what has not come will not come."""
        for where in list(self._sums):
            self._finish(where)
