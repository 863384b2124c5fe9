"""Replay: the reference's values in place of the program's, so that no error travels and each shows where it
was made.

Every record is kept as always, of what the program computed; then its memory is overwritten, in place and
only where bits differ, which leaves graph, aliasing and version counters as they are. Gradients are replaced
on their way (``forcing_gradients``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Generic

import numpy as np

from trueup.adapters.base import GraphNode, ModuleT, Recorder, Slotted, TensorT
from trueup.adapters.forcing_gradients import Arrivals, ForcedSums, ForcedUse, at_node
from trueup.adapters.forcing_measure import NOTHING, MeasuredRecord, measured
from trueup.adapters.forcing_plan import COMPARE, SILENT, CallPlan, ForcedRecord, ForcingPlan, HostValues
from trueup.numerics.dtypes import DTYPES, float64_from_array
from trueup.numerics.hidden import HIDE_WHERE_TRUE, in_form_of
from trueup.numerics.summary import HAS_DIGEST
from trueup.types.call_place import own_part, words_given
from trueup.types.codes import LeftFree
from trueup.types.reason import Reason, reason

if TYPE_CHECKING:
    from trueup.adapters.engine import BaseEngine
    from trueup.adapters.gradients import Slots

EQUAL, REPLACED, FREE = "equal", "replaced", "free"

PARAMETER = Reason(LeftFree.PARAMETER)
COMPARED_ONLY = Reason(LeftFree.COMPARED_ONLY)
EXPANDED = Reason(LeftFree.EXPANDED)
LOOKED_FOR = Reason(LeftFree.LOOKED_FOR)
NOT_IN_REFERENCE = Reason(LeftFree.NOT_IN_REFERENCE)
NO_VALUES = Reason(LeftFree.NO_VALUES)
BEFORE_MODEL = Reason(LeftFree.BEFORE_MODEL)


class BaseForcing(Generic[ModuleT, TensorT]):
    """What a replay knows in one process; ``seen`` is called for every record.

    A framework's own ``Forcing`` says how its tensors are read, compared and written.
    """

    MAX_EXAMPLES = 3

    def __init__(self, engine: BaseEngine[ModuleT, TensorT], folder: Path) -> None:
        self.engine = engine
        self._folder = folder
        self._recorder: Recorder | None = None
        self._plan: ForcingPlan | None = None
        self._places: dict[int, str] = {}
        self._calls: dict[int, CallPlan | None] = {}
        self._num_roots = -1
        self._given: dict[int, list[TensorT | None]] = {}
        """identity of each tensor that a call is given -> for each time it is given, what stands in for it"""
        self._given_to = -1
        self.arrivals = Arrivals(self)
        self._counts = {EQUAL: 0, REPLACED: 0}
        self._free: dict[Reason, list[str]] = {}
        self._num_free: dict[Reason, int] = {}

    def facts(self) -> dict[str, object]:
        """How many records were found equal and replaced, and what was left free and why."""
        free = [
            {"reason": why.to_json(), "count": count, "examples": self._free[why]}
            for why, count in sorted(self._num_free.items(), key=lambda item: -item[1])
        ]
        return {"plan": str(self._folder), **self._counts, "free": free}

    def end_step(self) -> None:
        """Forget everything tied to the step under way."""
        self._recorder = self._plan = None
        self._places, self._calls, self._given = {}, {}, {}
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
        """The string ``store.places`` makes of the call."""
        place = self._places.get(call)
        if place is None:
            row = self.engine.sink.recorder.calls[call]
            words = words_given(row.kind, row.arguments)
            own = own_part(row.name, words, self._number_among(call, words) if words else row.ordinal)
            outermost = f"{row.microbatch}|{row.mode}|{row.kind}|"
            above = outermost if row.parent is None else f"{self.place(row.parent)}/"
            place = self._places[call] = above + own
        return place

    def _number_among(self, call: int, words: str) -> int:
        """How many calls before it its caller made of the same name with the same words."""
        calls = self.engine.sink.recorder.calls
        row = calls[call]
        if row.ordinal == 0:
            return 0
        before = [calls[at] for at in range(row.parent or 0, call)]
        before = [one for one in before if (one.parent, one.name) == (row.parent, row.name)]
        if row.parent is None:
            outermost = row.kind, row.mode, row.microbatch
            before = [one for one in before if (one.kind, one.mode, one.microbatch) == outermost]
        return sum(words_given(one.kind, one.arguments) == words for one in before)

    def around(self, call: int) -> list[int]:
        """The module calls around a call, innermost first."""
        calls, found = self.engine.sink.recorder.calls, []
        while (parent := calls.cell(call, "parent")) is not None:
            found.append(parent)
            call = parent
        return found

    def _begin(self, recorder: Recorder) -> None:
        """A new step."""
        self.end_step()
        self._recorder = recorder
        sink = self.engine.sink
        self._plan = ForcingPlan(self._folder, recorder.step, sink.rank)
        recorder.forced = []
        if not self._plan.known:
            sink.limit(f"the plan holds nothing for step {recorder.step} of rank {sink.rank}: it ran free")

    # -- records ------------------------------------------

    def seen(self, call: int, phase: str, slot: str, tensor: TensorT, row: int | None) -> TensorT | None:
        """Look at a record just made; a gradient that is to be replaced is returned, changed."""
        planned = self.planned(call)
        if phase == "forward" and slot.startswith("input"):
            if call != self._given_to:
                self._given, self._given_to = {}, call
            self._given.setdefault(id(tensor), []).append(None)
        if planned is None:
            return None
        entry = planned.take(phase, slot)
        if entry is None:
            again = self.engine.sink.recorder.calls.cell(call, "mode") == "recompute"
            if phase in ("forward", "backward") and not again:
                self._note(call, phase, slot, FREE, NOT_IN_REFERENCE, NOTHING, None)
            return None
        if phase == "forward" and slot.startswith("input"):
            self._look_for_fixed_memory()
        return self._compare(call, phase, slot, tensor, row, entry)

    def _compare(
        self, call: int, phase: str, slot: str, tensor: TensorT, row: int | None, entry: ForcedRecord
    ) -> TensorT | None:
        local = self.local(tensor)
        why_not = self.incomparable(local, entry)
        expected = same = None
        if phase == "forward" and self._is_repeated(call, slot, tensor, entry):
            expected = self._values(entry)
        if expected is not None:
            self._hand_over(call, phase, slot, tensor, row, entry, expected)
            return None
        if why_not is None:
            same = self._same_digest(local, row, entry)
            if same:
                self._note(call, phase, slot, EQUAL, None, NOTHING, entry)
                return None
            expected = self._values(entry)
            why_not = NO_VALUES if expected is None else None
        if expected is None:
            self._note(call, phase, slot, FREE, why_not, NOTHING, entry)
            return None
        expected = self._as_the_same_mask(call, local, expected)
        if expected is None:
            self._note(call, phase, slot, FREE, _other_meaning(self.dtype_name(local), entry), NOTHING, entry)
            return None
        wanted = self.wanted(local, expected)
        if _is_cut_short(self.dtype_name(local), expected):
            self._hand_over(call, phase, slot, tensor, row, entry, expected)
            return None
        if same is None and self.same_bits(local, wanted):
            self._note(call, phase, slot, EQUAL, None, NOTHING, entry)
            return None
        found = measured(self.host_values(local), expected, entry.norm)
        self._keep_values(local, row, phase, slot)
        why_not = self._why_not(call, phase, slot, tensor, entry)
        self._note(call, phase, slot, REPLACED if why_not is None else FREE, why_not, found, entry)
        if why_not is not None:
            return None
        if phase == "backward":
            return self.written_copy(tensor, wanted)
        self._overwrite(call, slot, tensor, wanted)
        return None

    def _values(self, entry: ForcedRecord) -> HostValues | None:
        assert self._plan is not None
        return self._plan.values(entry)

    def _is_repeated(self, call: int, slot: str, tensor: TensorT, entry: ForcedRecord) -> bool:
        """Whether a model, or a module of it that takes whole numbers, is given one row where the reference
        gives one for each sample: position ids of size 1 in the first dim, say."""
        shape = tuple(tensor.shape)
        repeated = len(shape) == len(entry.shape) and shape != entry.shape
        repeated = repeated and all(
            own in (1, wanted) for own, wanted in zip(shape, entry.shape, strict=True)
        )
        return repeated and self._may_be_exchanged(call, "forward", slot, tensor)

    def _as_the_same_mask(self, call: int, local: TensorT, expected: HostValues) -> HostValues | None:
        """The reference's values; of a boolean mask beside another kind, in the form of the program's; None
        where one of the two is no mask, or all that they show is what the program's hides: a module inside
        may read it the other way round."""
        dtype = self.dtype_name(local)
        if "bool" not in (dtype, expected.dtype) or dtype == expected.dtype:
            return expected
        held = self.host_values(local)
        arrays = [side.data.view(np.dtype(DTYPES[side.dtype].storage)) for side in (held, expected)]
        hiding = self.engine.sink.recorder.calls.cell(call, "type") in HIDE_WHERE_TRUE
        values, other = (
            in_form_of(arrays[0], dtype, arrays[1], expected.dtype, true_hides=way)
            for way in (hiding, not hiding)
        )
        if values is None or (not hiding and other is not None and (other == arrays[0]).all()):
            return None
        return HostValues(data=values.reshape(-1).view(np.uint8), dtype=dtype, shape=held.shape)

    def _hand_over(
        self,
        call: int,
        phase: str,
        slot: str,
        tensor: TensorT,
        row: int | None,
        entry: ForcedRecord,
        expected: HostValues,
    ) -> None:
        """The reference's numbers are none of the tensor's dtype, or more of them: a batch gets a tensor of
        theirs, all else is left."""
        local = self.local(tensor)
        found = measured(_repeated(self.host_values(local), expected.shape), expected, entry.norm)
        self._keep_values(local, row, phase, slot)
        may_be = local is tensor and self._may_be_exchanged(call, phase, slot, tensor)
        given = self.given(local, expected) if may_be and entry.use != COMPARE else None
        why = None if given is not None else _other_meaning(self.dtype_name(local), entry)
        self._note(call, phase, slot, REPLACED if why is None else FREE, why, found, entry)
        if given is not None:
            self._given[id(tensor)][-1] = given

    def _same_digest(self, local: TensorT, row: int | None, entry: ForcedRecord) -> bool | None:
        """Whether summaries alone say that the bits are the same; None where they do not tell."""
        if row is None or entry.digest is None or entry.dtype != self.dtype_name(local):
            return None
        summary = self.engine.sink.recorder.view(row)
        return int(summary["digest"]) == entry.digest if summary["flags"] & HAS_DIGEST else None

    def _why_not(
        self, call: int, phase: str, slot: str, tensor: TensorT, entry: ForcedRecord
    ) -> Reason | None:
        """Why a record that differs keeps the program's values; None: it does not."""
        if entry.use == COMPARE:
            return COMPARED_ONLY
        if phase == "backward":
            return self.arrivals.why_not(call, slot)
        if self.is_fixed(tensor):
            return PARAMETER
        if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
            return EXPANDED
        if self.is_looked_for(tensor):
            return LOOKED_FOR
        outermost = self.engine.sink.recorder.calls[call]
        given = outermost.parent is None and outermost.kind == "api" and slot.startswith("input")
        if given and self.is_foreign(tensor):
            return BEFORE_MODEL
        return None

    def _note(
        self,
        call: int,
        phase: str,
        slot: str,
        state: str,
        why: Reason | None,
        found: MeasuredRecord,
        entry: ForcedRecord | None,
    ) -> None:
        if entry is not None and entry.use == SILENT:
            return
        recorder = self.engine.sink.recorder
        if why is None:
            self._counts[state] += 1
        else:
            self._num_free[why] = self._num_free.get(why, 0) + 1
            examples = self._free.setdefault(why, [])
            if len(examples) < self.MAX_EXAMPLES:
                examples.append(f"{recorder.calls[call].name or '(root)'} {phase} {slot}")
        number = None if entry is None else entry.record
        record = len(recorder.records) - 1
        code = None if why is None else why.code.value
        assert recorder.forced is not None
        recorder.forced.append((record, call, phase, slot, state, code, *found, number))

    def _keep_values(self, local: TensorT, row: int | None, phase: str, slot: str) -> None:
        """The program's own values stay with the trace wherever they were not the reference's."""
        recorder = self.engine.sink.recorder
        if row is not None and not recorder.has_values(row):
            kept = self.host_values(local)
            recorder.store_values(row, f"{phase}.{slot}", kept.dtype, kept.shape, kept.data.data)

    # -- forward ------------------------------------------

    def _overwrite(self, call: int, slot: str, tensor: TensorT, wanted: TensorT) -> None:
        if self._is_batch(call, "forward", slot, tensor):
            self._given[id(tensor)][-1] = self.written_copy(tensor, wanted)
            return
        self.write(tensor, wanted)

    def _is_batch(self, call: int, phase: str, slot: str, tensor: TensorT) -> bool:
        parent = self.engine.sink.recorder.calls.cell(call, "parent")
        is_input = phase == "forward" and slot.startswith("input")
        return parent is None and is_input and self.is_foreign(tensor)

    def _may_be_exchanged(self, call: int, phase: str, slot: str, tensor: TensorT) -> bool:
        """Whether a call can be handed another tensor: a batch, or whole numbers, which have no graph."""
        if self._is_batch(call, phase, slot, tensor):
            return True
        recorder = self.engine.sink.recorder
        whole = DTYPES[self.dtype_name(tensor)].kind in ("int", "uint")
        is_input = phase == "forward" and slot.startswith("input")
        return whole and is_input and recorder.calls.cell(call, "kind") == "module"

    def arguments(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments a root is to be called with: a batch is replaced, not written to, because its memory
        may be a file's."""
        given, self._given = self._given, {}
        left = {
            identity: iter(others)
            for identity, others in given.items()
            if any(other is not None for other in others)
        }
        if not left:
            return args, kwargs

        def chosen(leaf: object) -> object:
            other = next(left[id(leaf)], None) if id(leaf) in left else None
            return leaf if other is None else other

        return self.with_leaves_replaced(args, kwargs, chosen)

    def _look_for_fixed_memory(self) -> None:
        roots = self.engine.roots
        if len(roots) == self._num_roots:
            return
        self._num_roots = len(roots)
        for reference, _ in roots:
            module = reference()
            if module is not None:
                self.note_fixed(module)

    # -- backward ------------------------------------------

    def at_outputs(self, call: int, results: Slotted[TensorT]) -> None:
        """Gradients arriving at the outputs of a module call."""
        for where, tensor in results:
            if self.has_gradient(tensor):
                self.arrivals.add(call, where, tensor, results)

    def at_inputs(
        self,
        call: int,
        uses: dict[str, int],
        consumers: Iterable[tuple[GraphNode, Sequence[tuple[int, str]]]],
    ) -> None:
        """Gradients a call sends to its inputs, by the nodes that use them."""
        sums = ForcedSums(self, call, uses)
        for node, slots in consumers:
            node.register_hook(ForcedUse(sums, tuple(slots)))

    def at_node(self, call: int, node: GraphNode, arriving: Slots, leaving: Slots) -> None:
        """Both sides of an API call that made this node."""
        at_node(self, call, node, arriving, leaving)

    # -- a framework's own answers ------------------------------------------

    def local(self, tensor: TensorT) -> TensorT:
        """The tensor whose memory this process holds."""
        return tensor

    def incomparable(self, local: TensorT, entry: ForcedRecord) -> Reason | None:
        """Why the values cannot be compared at all; None: they can."""
        raise NotImplementedError

    def dtype_name(self, local: TensorT) -> str:
        """The dtype's common name."""
        raise NotImplementedError

    def host_values(self, local: TensorT) -> HostValues:
        """The program's values, row-major on the host."""
        raise NotImplementedError

    def wanted(self, local: TensorT, expected: HostValues) -> TensorT:
        """The reference's values in the tensor's dtype, where it lives."""
        raise NotImplementedError

    def given(self, local: TensorT, expected: HostValues) -> TensorT | None:
        """The reference's values in their own dtype, where ``local`` lives; None where none can be made."""
        raise NotImplementedError

    def same_bits(self, local: TensorT, wanted: TensorT) -> bool:
        """Whether both hold the same bits."""
        raise NotImplementedError

    def written_copy(self, tensor: TensorT, wanted: TensorT) -> TensorT:
        """Another tensor like this one, holding ``wanted``."""
        raise NotImplementedError

    def write(self, tensor: TensorT, wanted: TensorT) -> None:
        """Put ``wanted`` into the tensor's memory, unseen by its graph."""
        raise NotImplementedError

    def note_fixed(self, module: ModuleT) -> None:
        """Remember where parameters and buffers of a root live."""
        raise NotImplementedError

    def is_fixed(self, tensor: TensorT) -> bool:
        """Whether it is a parameter or buffer, or a view of one."""
        raise NotImplementedError

    def is_looked_for(self, tensor: TensorT) -> bool:
        """Whether the backward of what made it looks for the elements that equal it: with another value it
        finds none, and divides by their number."""
        return False

    def is_foreign(self, tensor: TensorT) -> bool:
        """Made by no operation of this step, as far as its graph tells."""
        raise NotImplementedError

    def with_leaves_replaced(
        self, args: tuple[object, ...], kwargs: dict[str, object], chosen: Callable[[object], object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments with what is chosen for each of their leaves, asked in their order."""
        raise NotImplementedError

    def no_graph(self) -> AbstractContextManager[object]:
        """A context in which operations make no graph."""
        raise NotImplementedError

    def has_gradient(self, tensor: TensorT) -> bool:
        """Whether a gradient will arrive at an output."""
        raise NotImplementedError

    def made_by(self, tensor: TensorT) -> tuple[GraphNode, int]:
        """The backward node of the operation that made a tensor, and which of its outputs it is."""
        raise NotImplementedError

    def identity(self, node: GraphNode) -> int:
        """A number that tells nodes apart for as long as the step lives."""
        raise NotImplementedError

    def hooks_of(self, tensor: TensorT) -> Sized | None:
        """Hooks the program itself has put on a tensor; None where they cannot be told."""
        return None

    def hook_first(self, tensor: TensorT, hook: Callable[[TensorT], TensorT | None]) -> int:
        """Put a hook in front of those; returns how many there are then."""
        raise NotImplementedError

    def uses(self, tensor: TensorT, results: Slotted[TensorT]) -> bool:
        """Whether one of the other results was made from the tensor."""
        raise NotImplementedError

    def norm(self, gradient: TensorT) -> float:
        """L2 norm."""
        raise NotImplementedError

    def zeros_like(self, gradient: TensorT) -> TensorT:
        """Zeros of its shape and dtype."""
        raise NotImplementedError

    def less(self, wanted: TensorT, passed: TensorT, like: TensorT) -> TensorT:
        """``wanted - passed``, as exactly as ``like``'s dtype holds it."""
        raise NotImplementedError


def _repeated(held: HostValues, shape: tuple[int, ...]) -> HostValues:
    """The values as a tensor of this shape holds them, to which theirs expands."""
    if held.shape == shape:
        return held
    values = held.data.view(np.dtype(DTYPES[held.dtype].storage)).reshape(held.shape)
    whole = np.ascontiguousarray(np.broadcast_to(values, shape))
    return HostValues(data=whole.reshape(-1).view(np.uint8), dtype=held.dtype, shape=shape)


def _is_cut_short(dtype: str, expected: HostValues) -> bool:
    """Whether the program's tensor holds whole numbers alone and the reference's has others: 33.5 would be 33
    there."""
    if DTYPES[dtype].kind not in ("int", "uint") or DTYPES[expected.dtype].kind != "float":
        return False
    values = float64_from_array(expected.data.view(np.dtype(DTYPES[expected.dtype].storage)), expected.dtype)
    with np.errstate(invalid="ignore"):
        return not np.array_equal(values.astype(DTYPES[dtype].storage).astype(np.float64), values)


def _other_meaning(dtype: str, entry: ForcedRecord) -> Reason:
    return reason(LeftFree.ROUNDING, target=dtype, reference=entry.dtype)


def shape_differs(shape: Sequence[int], entry: ForcedRecord) -> Reason:
    """Why a tensor of another shape than the reference's is left."""
    return reason(LeftFree.SHAPE_DIFFERS, target=str(list(shape)), reference=str(list(entry.shape)))
