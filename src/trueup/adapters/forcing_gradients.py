"""Gradients of a replay: looked at where they arrive and where they leave, and replaced on their way.

Arriving ones are caught in front of the node that made the output, leaving ones behind the nodes that used
the input. Nothing is inserted into the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic

from trueup.adapters.base import GraphNode, ModuleT, Slotted, TensorT
from trueup.adapters.gradients import Gradients, Slots
from trueup.types.codes import LeftFree
from trueup.types.reason import Reason

if TYPE_CHECKING:
    from trueup.adapters.forcing import BaseForcing

SHARED_GRADIENT = Reason(LeftFree.SHARED_GRADIENT)
LAST_USE_WITHOUT_GRADIENT = Reason(LeftFree.LAST_USE_WITHOUT_GRADIENT)
TOO_LARGE = 4.0
"""a first contribution so many times the reference's whole gradient is not let through: what corrects it
would drown in its rounding"""


class Arrivals(Generic[ModuleT, TensorT]):
    """Outputs whose total gradients are waited for; modules that return one and the same tensor share one."""

    def __init__(self, forcing: BaseForcing[ModuleT, TensorT]) -> None:
        self._forcing = forcing
        self._known: dict[tuple[int, int], _Arrival[ModuleT, TensorT]] = {}
        self._free: dict[tuple[int, str], Reason] = {}

    def add(self, call: int, where: str, tensor: TensorT, results: Slotted[TensorT]) -> None:
        """An output of a module call."""
        node, number = self._forcing.made_by(tensor)
        identity = self._forcing.identity(node)
        hooks = self._forcing.hooks_of(tensor)
        known = self._known.get((identity, number))
        if known is not None and known.num_hooks == len(hooks or ()):
            inside = self._used_inside(call, known, tensor, results)
            known.add(call, where, outermost=not inside)
            return
        arrival = self._known[identity, number] = _Arrival(self._forcing, node, number)
        arrival.add(call, where, outermost=True)
        if hooks:  # put there by the module itself: they belong to its own backward
            arrival.num_hooks = self._forcing.hook_first(tensor, arrival.at_tensor)
        else:
            node.register_prehook(arrival.at_node)

    def of_node(self, call: int, where: str, node: GraphNode, number: int) -> None:
        """An output of an API call."""
        identity = self._forcing.identity(node)
        known = self._known.get((identity, number))
        if known is None:
            known = self._known[identity, number] = _Arrival(self._forcing, node, number)
            node.register_prehook(known.at_node)
        known.add(call, where, outermost=True)

    def why_not(self, call: int, slot: str) -> Reason | None:
        """Why the gradient at a slot is not replaced there."""
        return self._free.get((call, slot))

    @contextlib.contextmanager
    def left_free(self, call: int, slot: str, why: Reason) -> Iterator[None]:
        """What is recorded here cannot be replaced."""
        self._free[call, slot] = why
        try:
            yield
        finally:
            del self._free[call, slot]

    def arrived(self, arrival: _Arrival[ModuleT, TensorT], gradient: TensorT) -> TensorT | None:
        """Record the gradient for all who return the tensor; the outermost is charged and replaces it."""
        engine, replaced = self._forcing.engine, None
        recorder = engine.sink.recorder
        for site in arrival.sites:
            charged = site == arrival.charged
            with contextlib.nullcontext() if charged else self.left_free(*site, SHARED_GRADIENT):
                new = engine.tensor(
                    site[0], "backward", site[1], gradient, recorder.calls.cell(site[0], "microbatch")
                )
            replaced = new if charged else replaced
        return replaced

    def forget(self) -> None:
        """Release the graph."""
        self._known = {}

    def _used_inside(
        self, call: int, known: _Arrival[ModuleT, TensorT], tensor: TensorT, results: Slotted[TensorT]
    ) -> bool:
        """Whether the outer call itself uses the tensor for another of its outputs, such as a loss."""
        if call not in self._forcing.around(known.charged[0]):
            return False
        return self._forcing.uses(tensor, results)


class _Arrival(Generic[ModuleT, TensorT]):
    """Hook for the total gradient of one tensor."""

    __slots__ = ("_arrivals", "_forcing", "_recorder", "charged", "node", "num_hooks", "number", "sites")

    def __init__(self, forcing: BaseForcing[ModuleT, TensorT], node: GraphNode, number: int) -> None:
        self._forcing = forcing
        self._arrivals = forcing.arrivals
        self._recorder = forcing.engine.sink.recorder
        self.node, self.number = node, number
        self.num_hooks = 0
        self.sites: list[tuple[int, str]] = []
        self.charged = (-1, "")

    def add(self, call: int, where: str, *, outermost: bool) -> None:
        """One more call that returns the tensor."""
        forcing, site = self._forcing, (call, where)
        if not self.sites or (outermost and len(forcing.around(call)) < len(forcing.around(self.charged[0]))):
            self.charged = site
        self.sites.append(site)

    def at_tensor(self, gradient: TensorT | None) -> TensorT | None:
        """As a hook of the tensor, in front of all others."""
        engine = self._forcing.engine
        if gradient is None or not engine.sink.active or engine.sink.recorder is not self._recorder:
            return None  # no gradient: an output of a compiled function that the loss does not reach outside
        try:
            with self._forcing.engine.quiet(), self._forcing.no_graph():
                return self._arrivals.arrived(self, gradient)
        except Exception as error:
            engine.failed(f"gradient {self.charged[1]}", error)
            return None

    def at_node(self, gradients: Gradients[TensorT]) -> Gradients[TensorT] | None:
        """As a hook in front of the node."""
        gradient = gradients[self.number]
        new = None if gradient is None else self.at_tensor(gradient)
        return None if new is None else (*gradients[: self.number], new, *gradients[self.number + 1 :])


def at_node(
    forcing: BaseForcing[ModuleT, TensorT],
    call: int,
    node: GraphNode,
    arriving: Slots,
    leaving: Slots,
) -> None:
    """Hooks on both sides of the single node of an API call."""
    for number, where in arriving:
        forcing.arrivals.of_node(call, where, node, number)
    if leaving:
        uses = {where: 1 for _, where in leaving}
        node.register_hook(ForcedUse(ForcedSums(forcing, call, uses), leaving))


class ForcedUse(Generic[ModuleT, TensorT]):
    """Node hook of one consumer of a call's inputs."""

    __slots__ = ("_slots", "_sums")

    def __init__(self, sums: ForcedSums[ModuleT, TensorT], slots: Slots) -> None:
        self._sums = sums
        self._slots = slots

    def __call__(self, gradients: Gradients[TensorT], _: object) -> Gradients[TensorT] | None:
        return self._sums.add(gradients, self._slots)


class ForcedSums(Generic[ModuleT, TensorT]):
    """What a call sends to its inputs, each over all its uses; the last of them brings the sum to the
    reference's.

    Contributions go through as they are until then, so that an equal sum is also added up in the order it
    always was, bit for bit.
    """

    __slots__ = ("_call", "_forcing", "_left", "_passed", "_recorder", "_sums", "_uses")

    def __init__(self, forcing: BaseForcing[ModuleT, TensorT], call: int, uses: dict[str, int]) -> None:
        self._forcing = forcing
        self._recorder = forcing.engine.sink.recorder
        self._call = call
        self._uses = uses
        self._left = dict(uses)
        self._sums: dict[str, TensorT] = {}
        self._passed: dict[str, TensorT] = {}
        """what has been let through of each sum; not there: nothing"""

    def add(self, gradients: Gradients[TensorT], slots: Slots) -> Gradients[TensorT] | None:
        """One consumer has run; returns what it is to send instead."""
        engine = self._forcing.engine
        if not engine.sink.active or engine.sink.recorder is not self._recorder:
            return None
        new = list(gradients)
        changed = False
        try:
            with self._forcing.engine.quiet(), self._forcing.no_graph():
                for number, where in slots:
                    other = self._add(where, gradients[number])
                    if other is not None:
                        new[number], changed = other, True
        except Exception as error:
            engine.failed(f"backward input {slots}", error)
        return tuple(new) if changed else None

    def _add(self, where: str, gradient: TensorT | None) -> TensorT | None:
        self._left[where] -= 1
        last = self._left[where] == 0
        if last:
            self._left[where] = self._uses[where]
        known, passed = self._sums.get(where), self._passed.get(where)
        if gradient is None:
            if last and known is not None:
                self._finish(where, LAST_USE_WITHOUT_GRADIENT)
            return None
        if self._uses[where] == 1:
            return self._record(where, gradient)
        total = gradient if known is None else known + gradient
        if not last:
            return self._let_through(where, gradient, total, passed)
        self._forget(where)
        wanted = self._record(where, total)
        held_back = known is not None and known is not passed
        if wanted is None and not held_back:
            return None
        wanted = total if wanted is None else wanted
        return wanted if passed is None else self._forcing.less(wanted, passed, gradient)

    def _let_through(
        self, where: str, gradient: TensorT, total: TensorT, passed: TensorT | None
    ) -> TensorT | None:
        self._forcing.engine.unfinished[id(self)] = self
        before = self._sums.get(where)
        self._sums[where] = total
        planned = self._forcing.planned(self._call)
        entry = None if planned is None else planned.peek("backward", where)
        whole = None if entry is None else entry.norm
        if whole is not None and not self._forcing.norm(gradient) <= TOO_LARGE * whole:
            return self._forcing.zeros_like(gradient)
        if before is passed:  # all of it so far
            self._passed[where] = total
        else:
            self._passed[where] = gradient if passed is None else passed + gradient
        return None

    def _record(self, where: str, gradient: TensorT) -> TensorT | None:
        engine = self._forcing.engine
        microbatch = self._recorder.calls.cell(self._call, "microbatch")
        return engine.tensor(self._call, "backward", where, gradient, microbatch)

    def _forget(self, where: str) -> None:
        self._sums.pop(where, None)
        self._passed.pop(where, None)

    def _finish(self, where: str, why: Reason) -> None:
        """Record a sum that can no longer be changed."""
        total = self._sums.get(where)
        self._forget(where)
        if total is not None:
            with self._forcing.arrivals.left_free(self._call, where, why):
                self._record(where, total)

    def flush(self) -> None:
        """Backward is over: what has not come will not come."""
        for where in list(self._sums):
            self._left[where] = self._uses[where]
            self._finish(where, LAST_USE_WITHOUT_GRADIENT)
