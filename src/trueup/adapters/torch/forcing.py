"""Replay: the reference's values in place of the program's, so that no error travels and each shows where it
was made.

Every record is kept as always, of what the program computed; then its memory is overwritten, in place and
only where bits differ, which leaves graph, aliasing and version counters as they are. Gradients are replaced
on their way (``forcing_gradients``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from trueup.adapters.torch.forcing_gradients import Arrivals, Sums, Use, at_node
from trueup.adapters.torch.forcing_measure import NOTHING, Measured, host_bytes, measured, same_bits
from trueup.adapters.torch.forcing_plan import COMPARE, SILENT, CallPlan, Entry, StepPlan
from trueup.numerics.summary import HAS_DIGEST

if TYPE_CHECKING:
    from trueup.adapters.torch.engine import Engine
    from trueup.adapters.torch.gradients import Slots

EQUAL, REPLACED, FREE = "equal", "replaced", "free"

A_PARAMETER = "a parameter or buffer: compared, never overwritten"
EXPANDED = "expanded: several elements share one place in memory"
NOT_OVERWRITTEN = "compared, never overwritten"
NOT_THERE = "the reference has no such tensor at this call"
NO_VALUES = "the reference kept no values of it"
OUTSIDE = "made before the program called its model: its memory may be read-only"


class Forcing:
    """What a replay knows in one process; ``seen`` is called for every record."""

    MAX_EXAMPLES = 3

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self._folder = folder
        self._recorder: Any = None
        self._plan: StepPlan | None = None
        self._places: dict[int, str] = {}
        self._calls: dict[int, CallPlan | None] = {}
        self._fixed: set[int] = set()
        """where parameters and buffers live"""
        self._num_roots = -1
        self._substitutes: dict[int, tuple[Tensor, Tensor]] = {}
        self.arrivals = Arrivals(self)
        self._counts = {EQUAL: 0, REPLACED: 0}
        self._free: dict[str, list[str]] = {}
        self._num_free: dict[str, int] = {}

    def facts(self) -> dict[str, Any]:
        """How many records were found equal and replaced, and what was left free and why."""
        free = [
            {"reason": reason, "count": count, "examples": self._free[reason]}
            for reason, count in sorted(self._num_free.items(), key=lambda item: -item[1])
        ]
        return {"plan": str(self._folder), **self._counts, "free": free}

    def end_step(self) -> None:
        """Forget everything tied to the step under way."""
        self._recorder = self._plan = None
        self._places, self._calls, self._substitutes = {}, {}, {}
        self.arrivals.forget()

    # -- looking up ------------------------------------------

    def planned(self, call: int) -> CallPlan | None:
        """What the plan holds for a call of the step under way."""
        recorder = self.engine.sink.recorder
        if recorder is not self._recorder:
            self._begin(recorder)
        try:
            return self._calls[call]
        except KeyError:
            assert self._plan is not None
            found = self._calls[call] = self._plan.places.get(self.place(call))
            return found

    def place(self, call: int) -> str:
        """The string ``matching.places`` makes of the call."""
        place = self._places.get(call)
        if place is None:
            parent, kind, name, _, ordinal, microbatch, mode = self.engine.sink.recorder.calls[call][:7]
            own = f"{name}#{ordinal}"
            above = f"{microbatch}|{mode}|{kind}|" if parent is None else f"{self.place(parent)}/"
            place = self._places[call] = above + own
        return place

    def around(self, call: int) -> list[int]:
        """The module calls around a call, innermost first."""
        calls, found = self.engine.sink.recorder.calls, []
        while (parent := calls[call][0]) is not None:
            found.append(parent)
            call = parent
        return found

    def _begin(self, recorder: Any) -> None:
        """A new step."""
        self.end_step()
        self._recorder = recorder
        sink: Any = self.engine.sink
        self._plan = StepPlan(self._folder, recorder.step, sink.rank)
        recorder.forced = []
        if not self._plan.known:
            sink.limit(f"the plan holds nothing for step {recorder.step} of rank {sink.rank}: it ran free")

    # -- records ------------------------------------------

    def seen(self, call: int, phase: str, slot: str, tensor: Tensor, row: int | None) -> Tensor | None:
        """Look at a record just made; a gradient that is to be replaced is returned, changed."""
        planned = self.planned(call)
        if planned is None:
            return None
        entry = planned.take(phase, slot)
        if entry is None:
            again = self._recorder.calls[call][6] == "recompute"
            if phase in ("forward", "backward") and not again:
                self._note(call, phase, slot, FREE, NOT_THERE, NOTHING, None)
            return None
        if phase == "forward" and slot.startswith("input"):
            self._look_for_fixed_memory()
        return self._compare(call, phase, slot, tensor, row, entry)

    def _compare(
        self, call: int, phase: str, slot: str, tensor: Tensor, row: int | None, entry: Entry
    ) -> Tensor | None:
        local = getattr(tensor, "_local_tensor", tensor)
        why_not = _incomparable(local, entry)
        expected = same = None
        if why_not is None:
            same = self._same_digest(local, row, entry)
            if same:
                self._note(call, phase, slot, EQUAL, None, NOTHING, entry)
                return None
            assert self._plan is not None
            expected = self._plan.values(entry)
            why_not = NO_VALUES if expected is None else None
        if expected is None:
            self._note(call, phase, slot, FREE, why_not, NOTHING, entry)
            return None
        expected = expected.to(device=local.device)
        wanted = expected.to(local.dtype)
        if same is None and same_bits(local, wanted):
            self._note(call, phase, slot, EQUAL, None, NOTHING, entry)
            return None
        found = measured(local, expected, entry.norm)
        self._keep_values(local, row, phase, slot)
        why_not = self._why_not(call, phase, slot, tensor, entry)
        self._note(call, phase, slot, REPLACED if why_not is None else FREE, why_not, found, entry)
        if why_not is not None:
            return None
        if phase == "backward":
            return _written(tensor.detach().clone(), wanted)
        self._overwrite(call, slot, tensor, wanted)
        return None

    def _same_digest(self, local: Tensor, row: int | None, entry: Entry) -> bool | None:
        """Whether summaries alone say that the bits are the same; None where they do not tell."""
        if row is None or entry.digest is None or entry.dtype != _name(local.dtype):
            return None
        summary = self.engine.sink.recorder.view(row)
        return int(summary["digest"]) == entry.digest if summary["flags"] & HAS_DIGEST else None

    def _why_not(self, call: int, phase: str, slot: str, tensor: Tensor, entry: Entry) -> str | None:
        """Why a record that differs keeps the program's values; None: it does not."""
        if entry.use == COMPARE:
            return NOT_OVERWRITTEN
        if phase == "backward":
            return self.arrivals.why_not(call, slot)
        if isinstance(tensor, nn.Parameter) or tensor.untyped_storage().data_ptr() in self._fixed:
            return A_PARAMETER
        if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
            return EXPANDED
        outermost = self.engine.sink.recorder.calls[call]
        if outermost[0] is None and outermost[1] == "api" and slot.startswith("input") and _foreign(tensor):
            return OUTSIDE
        return None

    def _note(
        self,
        call: int,
        phase: str,
        slot: str,
        state: str,
        reason: str | None,
        found: Measured,
        entry: Entry | None,
    ) -> None:
        if entry is not None and entry.use == SILENT:
            return
        recorder = self._recorder
        if reason is None:
            self._counts[state] += 1
        else:
            self._num_free[reason] = self._num_free.get(reason, 0) + 1
            examples = self._free.setdefault(reason, [])
            if len(examples) < self.MAX_EXAMPLES:
                examples.append(f"{recorder.calls[call][2] or '(root)'} {phase} {slot}")
        number = None if entry is None else entry.record
        record = len(recorder.records) - 1
        recorder.forced.append((record, call, phase, slot, state, reason, *found, number))

    def _keep_values(self, local: Tensor, row: int | None, phase: str, slot: str) -> None:
        """The program's own values stay with the trace wherever they were not the reference's."""
        recorder = self._recorder
        if row is not None and not recorder.has_values(row):
            data = host_bytes(local).data if local.numel() else memoryview(b"")
            recorder.store_values(row, f"{phase}.{slot}", _name(local.dtype), tuple(local.shape), data)

    # -- forward ------------------------------------------

    def _overwrite(self, call: int, slot: str, tensor: Tensor, wanted: Tensor) -> None:
        parent = self._recorder.calls[call][0]
        if parent is None and slot.startswith("input") and _foreign(tensor):
            self._substitutes[id(tensor)] = tensor, _written(tensor.detach().clone(), wanted)
            return
        with torch.no_grad(), _disable_current_modes():
            _written(tensor.data, wanted)
        self.engine.summariser.forget()

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The arguments a root is to be called with: a batch is replaced, not written to, because its memory
        may be a file's."""
        if not self._substitutes:
            return args, kwargs
        known, self._substitutes = self._substitutes, {}

        def replaced(leaf: Any) -> Any:
            found = known.get(id(leaf))
            return leaf if found is None else found[1]

        new: tuple[Any, Any] = tree_map(replaced, (args, kwargs))
        return new

    def _look_for_fixed_memory(self) -> None:
        roots = self.engine.roots
        if len(roots) == self._num_roots:
            return
        self._num_roots = len(roots)
        for reference, _ in roots:
            module = reference()
            if module is not None:
                tensors = [*module.parameters(), *module.buffers()]
                plain = (getattr(t, "_local_tensor", t) for t in tensors)
                self._fixed |= {t.untyped_storage().data_ptr() for t in plain if t.layout is torch.strided}
        self._fixed.discard(0)

    # -- backward ------------------------------------------

    def at_outputs(self, call: int, results: list[tuple[str, Tensor]]) -> None:
        """Gradients arriving at the outputs of a module call."""
        for where, tensor in results:
            if tensor.requires_grad and tensor.grad_fn is not None:
                self.arrivals.add(call, where, tensor, results)

    def at_inputs(
        self, call: int, uses: dict[str, int], consumers: list[tuple[Any, list[tuple[int, str]]]]
    ) -> None:
        """Gradients a call sends to its inputs, by the nodes that use them."""
        sums = Sums(self, call, uses)
        for node, slots in consumers:
            node.register_hook(Use(sums, tuple(slots)))

    def at_node(self, call: int, node: Any, arriving: Slots, leaving: Slots) -> None:
        """Both sides of an API call that made this node."""
        at_node(self, self.arrivals, call, node, arriving, leaving)


def _incomparable(local: Tensor, entry: Entry) -> str | None:
    if torch._C._functorch.is_functorch_wrapped_tensor(local):
        return "inside a function transform: no values of its own"
    if local.layout is not torch.strided or local.is_nested or local.is_quantized:
        return f"layout {str(local.layout).removeprefix('torch.')}: not replaced"
    if tuple(local.shape) != entry.shape:
        return f"another shape: {list(local.shape)} against {list(entry.shape)}"
    return None


def _foreign(tensor: Tensor) -> bool:
    """Made by no operation of this step, as far as its graph tells."""
    return tensor.grad_fn is None and not tensor.requires_grad


def _written(tensor: Tensor, wanted: Tensor) -> Tensor:
    """The tensor, or its local shard, with these values in its memory."""
    getattr(tensor, "_local_tensor", tensor).copy_(wanted)
    return tensor


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def forcing_from_options(engine: Engine) -> Forcing | None:
    """What a replay needs, where the session's options ask for one."""
    folder = engine.sink.options.replay
    return None if folder is None else Forcing(engine, Path(folder))
