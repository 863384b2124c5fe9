"""One step of one rank of a dump as the tables of docs/trace-format.md.

| in the dump | here |
|---|---|
| `Module.<path>.<Class>.forward.<n>` | a module call `<path>` of type `<Class>`, `global_ordinal` n |
| `<Prefix>.<api>.<n>.forward` | an api or collective call under its qualified name |
| `....backward.<n>` | phase backward of forward call n; its `input` is the gradient at our `output.*` |
| `parameters` | kind parameter, phase `param`, slot `value`; `value.<n>` where forward call n saw others |
| `.parameters_grad.<n>` | phase `param_grad`, slot `accumulated` (msprobe reads `.grad`), microbatch n |
| construct.json | parents; a call whose parent is a backward entry is a recomputation |
| | what clipping and the optimizer call has mode `eval`: they run without gradients |
| `Max Min Mean Norm` | `maximum minimum mean l2_norm`, over *all* values: infinities and NaN show |
| | `num_nan num_posinf num_neginf`: 0 where those four prove it, else null |
| `md5` | `crc32`, which it is; other hashes become `source_digest` |
| what has no column | `source_extra`, `absent` |

Columns beyond the format, there only when they hold something: `summaries.source_digest`, text that two dumps
share where bits are equal (msprobe's xor mode; MindSpore's bf16, hashed as fp32); `summaries.source_extra`, a
JSON object; `calls.absent`, a JSON list of slots that held None.

msprobe leaves out the root module; where several modules are outermost, one call of it (name `""`, no records
of its own) is put around what it called, in each microbatch (`roots`).

The file lists a call when it ends; here calls are in the order they began, inputs before what the call does.
A microbatch begins with the step's first call seen again after a backward entry, or where Megatron says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from trueup.errors import TraceError
from trueup.importers.msprobe.columns import Columns
from trueup.importers.msprobe.leaves import (
    DumpedCall,
    Leaf,
    Leaves,
    backward_slots,
    input_leaves,
    output_leaves,
)
from trueup.importers.msprobe.names import BACKWARD, FORWARD, EntryName, entry_name
from trueup.importers.msprobe.roots import calls_of_root
from trueup.store import StepTables
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.table_rows import CallRow

_AUTOGRAD_ORDER = Reason(RecordCode.AUTOGRAD_ORDER)
NO_GRADIENT = "msprobe saw no gradient here"
_FRAMEWORK_FRAME = re.compile(r"-packages/(torch|torch_npu|mindspore|msprobe)/|/torch/(nn|autograd|utils)/")
_GROUPS = ("optimizer", "clip_grad")


class TableBuilder:
    """Builds the tables of one step of one rank; use ``build`` once."""

    def __init__(
        self,
        *,
        data: Mapping[str, DumpedCall],
        construct: Mapping[str, object],
        stack: Mapping[str, object],
        framework: str,
        stored: frozenset[str],
    ) -> None:
        self._data = data
        self._construct = construct
        self._framework = framework
        self._columns = Columns(framework, stored)
        self._rows: dict[str, int] = {}
        self._parameters: dict[str, tuple[int, Leaf | None]] = {}
        self._ordinals: dict[tuple[object, ...], int] = {}
        self._opening: set[str] = set()
        self._names: dict[str, EntryName] = {}
        self._microbatch = 0
        self._in_backward = False
        self._first: tuple[str, str] | None = None
        self._stack_of = self._stacks(stack)
        self._of_root: frozenset[str] = frozenset()
        self._root_calls: dict[int, int] = {}

    def build(self, step: int, rank: int) -> StepTables:
        """The tables.

        Raises:
            TraceError: an entry is not of the form msprobe writes.
        """
        names: list[EntryName] = []
        for key, entry in self._data.items():
            names.append(self._name(key))
            if isinstance(entry, dict) and entry.get("parameters"):
                self._parameter_values(names[-1], entry["parameters"], key)
        frames = {key: self._columns.stacks[number] for key, number in self._stack_of.items()}
        self._of_root = calls_of_root(self._names, self._construct, frames)
        for name, (key, entry) in zip(names, self._data.items(), strict=True):
            try:
                self._entry(name, entry)
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                raise TraceError(_unexpected(key, error)) from error
        return self._columns.tables(step, rank)

    # -- entries --------------------------------------------------------------------------------------------

    def _entry(self, name: EntryName, entry: DumpedCall) -> None:
        if name.phase == FORWARD:
            call = self._open(name.call, name)
            self._side(call, name, output_leaves(entry))
        elif name.phase == BACKWARD:
            self._in_backward = True
            self._backward(name, entry)
        else:
            self._in_backward = True
            self._parameter_gradients(name, cast("Mapping[str, object]", entry))

    def _side(self, call: int, name: EntryName, leaves: Leaves) -> None:
        columns = self._columns
        phase = "collective" if name.kind == "collective" else "forward"
        microbatch = columns.calls[call].microbatch
        for slot, leaf in leaves.tensors:
            columns.record(call, phase, slot, microbatch, leaf, None)
        if leaves.scalars:
            columns.arguments.setdefault(call, {}).update(leaves.scalars)
        if leaves.absent:
            columns.absent.setdefault(call, []).extend(leaves.absent)

    def _backward(self, name: EntryName, entry: DumpedCall) -> None:
        call = self._open(name.call, name)
        forward = self._data.get(name.call) or DumpedCall()
        reason = _AUTOGRAD_ORDER if name.kind != "module" and self._framework == "pytorch" else None
        self._gradients(call, "output", entry.get("input"), forward, None)
        self._gradients(call, "input", entry.get("output"), forward, reason)

    def _gradients(
        self, call: int, side: str, gradients: list[object] | None, forward: DumpedCall, reason: Reason | None
    ) -> None:
        columns = self._columns
        gradients = gradients or []
        microbatch = columns.calls[call].microbatch
        for slot, gradient in zip(_gradient_slots(side, gradients, forward), gradients, strict=True):
            leaves = Leaves()
            leaves.add(slot, gradient)
            for inner, leaf in leaves.tensors:
                columns.record(call, "backward", inner, microbatch, leaf, reason)
            if leaves.absent:
                columns.absent.setdefault(call, []).extend(f"backward.{s}" for s in leaves.absent)

    # -- parameters -----------------------------------------------------------------------------------------

    def _parameter(self, fqn: str) -> int:
        return self._add(None, "parameter", fqn, None, 0, "train", None, 0)

    def _parameter_values(self, name: EntryName, parameters: Mapping[str, Leaf | None], key: str) -> None:
        try:
            for parameter, leaf in parameters.items():
                fqn = f"{name.name}.{parameter}" if name.name else parameter
                known = self._parameters.get(fqn)
                if leaf is None or (known is not None and _same(known[1], leaf)):
                    continue
                call, slot = (
                    (self._parameter(fqn), "value") if known is None else (known[0], f"value.{name.ordinal}")
                )
                self._parameters.setdefault(fqn, (call, leaf))
                self._columns.record(call, "param", slot, 0, leaf, None)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise TraceError(_unexpected(key, error)) from error

    def _parameter_gradients(self, name: EntryName, entry: Mapping[str, object]) -> None:
        for parameter, listed in entry.items():
            fqn = f"{name.name}.{parameter}" if name.name else parameter
            if fqn not in self._parameters:
                self._parameters[fqn] = (self._parameter(fqn), None)
            call = self._parameters[fqn][0]
            leaf = listed[0] if isinstance(listed, list) and listed else listed
            if isinstance(leaf, dict):
                self._columns.record(call, "param_grad", "accumulated", name.ordinal, cast(Leaf, leaf), None)
            else:
                self._columns.missing(call, "param_grad", "accumulated", name.ordinal, NO_GRADIENT)

    # -- calls ----------------------------------------------------------------------------------------------

    def _open(self, key: str, name: EntryName) -> int:
        """Row of the call ``key`` names; when it is new, after the calls around it, with its inputs."""
        row = self._rows.get(key)
        if row is not None:
            return row
        self._opening.add(key)
        parent, microbatch, mode = self._surroundings(key, name)
        row = self._add(
            parent, name.kind, name.name, name.type, microbatch, mode, self._stack_of.get(key), name.ordinal
        )
        self._rows[key] = row
        self._opening.discard(key)
        entry = self._data.get(key)
        if entry:
            self._side(row, name, input_leaves(entry))
        return row

    def _name(self, key: str) -> EntryName:
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = entry_name(key, self._framework)
        return name

    def _surroundings(self, key: str, name: EntryName) -> tuple[int | None, int, str]:
        """Parent, microbatch and mode of a new call."""
        parent = self._construct.get(key)
        declared = None
        if isinstance(parent, list):  # under Megatron: [parent, microbatch]
            declared = parent[1] if len(parent) > 1 and isinstance(parent[1], int) else None
            parent = parent[0] if parent else None
        unfinished = bool(self._construct) and key not in self._construct and name.kind != "module"
        mode = "train"
        if parent in _GROUPS:  # clipping and updates run without gradients
            mode = "eval"
        elif unfinished and self._in_backward:  # a recomputation stops at its last need
            mode = "recompute"
        if isinstance(parent, str) and parent not in _GROUPS and parent not in self._opening:
            around = self._name(parent)
            if around.phase == FORWARD and around.kind == "module":
                row = self._open(parent, around)
                call = self._columns.calls[row]
                return row, call.microbatch, call.mode
            mode = "recompute"
        if declared is None and mode == "train":
            self._turn(name)
        microbatch = self._microbatch if declared is None else max(declared, 0)
        return (self._root(microbatch) if key in self._of_root else None), microbatch, mode

    def _root(self, microbatch: int) -> int:
        """The root's call in a microbatch."""
        if microbatch not in self._root_calls:
            row = self._add(None, "module", "", None, microbatch, "train", None, len(self._root_calls))
            self._root_calls[microbatch] = row
        return self._root_calls[microbatch]

    def _turn(self, name: EntryName) -> None:
        site = (name.kind, name.name)
        if self._first is None:
            self._first = site
        elif self._in_backward and site == self._first:
            self._microbatch += 1
            self._in_backward = False

    def _add(
        self,
        parent: int | None,
        kind: str,
        name: str,
        type_name: str | None,
        microbatch: int,
        mode: str,
        stack: int | None,
        number: int,
    ) -> int:
        where = (parent, kind, name, mode, microbatch if parent is None else 0)
        ordinal = self._ordinals.get(where, 0)
        self._ordinals[where] = ordinal + 1
        self._columns.calls.append(
            CallRow(parent, kind, name, type_name, ordinal, microbatch, mode, False, stack, None, number)
        )
        return len(self._columns.calls) - 1

    def _stacks(self, stack: Mapping[str, object]) -> dict[str, int]:
        """Fills the stacks table; returns the stack of each forward entry."""
        found: dict[str, int] = {}
        for number, listed in stack.items():
            if not (isinstance(listed, list) and len(listed) == 2 and str(number).isdecimal()):
                continue
            names, frames = listed
            frames = frames if isinstance(frames, list) else []
            own = (f for f in frames if isinstance(f, str) and not _FRAMEWORK_FRAME.search(f))
            self._columns.stacks[int(number)] = [frame_from_dump(frame) for frame in own]
            names = names if isinstance(names, list) else []
            found.update(dict.fromkeys((n for n in names if isinstance(n, str)), int(number)))
        return found


def frame_from_dump(frame: str) -> str:
    """``File x.py, line 3, in f, \\n source`` as ``x.py:3 f | source``.

    Example:
        >>> frame_from_dump("File train.py, line 128, in main, \\n logits = model(x)")
        'train.py:128 main | logits = model(x)'
    """
    place, _, source = frame.partition("\n")
    file, found, rest = place.partition(", line ")
    line, _, function = rest.partition(", in ")
    if not found:
        return frame
    return f"{file.removeprefix('File ')}:{line} {function.rstrip(', ')} | {source.strip()}"


def _gradient_slots(side: str, gradients: list[object], forward: DumpedCall) -> list[str]:
    if side == "output":
        listed = forward.get("output")
        return backward_slots(
            side, len(gradients), output_leaves(forward) if listed else None, len(listed or ())
        )
    listed = forward.get("input_args")
    return backward_slots(side, len(gradients), None, len(listed or ()))


def _same(one: object, other: object) -> bool:
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return bool(one == other)
    return all(
        one.get(k) == other.get(k) or one.get(k) != one.get(k)
        for k in ("dtype", "shape", "Max", "Min", "Mean", "Norm", "md5")
    )


def _unexpected(key: str, error: Exception) -> str:
    return f"entry {key!r} is not of the form msprobe writes ({type(error).__name__}: {error})"
