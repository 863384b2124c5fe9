"""The entries of ``dump.json``, ``construct.json`` and ``stack.json`` of one step of one rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypedDict, cast

from trueup.importers.msprobe.leaves import scalar_for_dump
from trueup.importers.msprobe.names import BACKWARD, FORWARD, PARAMETERS_GRAD, function_base, module_base
from trueup.importers.msprobe.tensors import tensor_for_dump
from trueup.store import StepTables
from trueup.types.trace import SummaryRow

Record = tuple[int, str, int | None, bool | None]
"""row in records, slot, summary, requires_grad"""
Store = Callable[[SummaryRow, str], str | None]
"""Stores the values of one summary under a name, if it has any; returns the file's name."""

_FORWARD_PHASES = ("forward", "collective")
_LAST = 1 << 60


class _Call(TypedDict):
    """One row of ``calls``."""

    parent: int | None
    kind: str
    name: str
    type: str | None
    stack: int | None
    arguments: str | None
    absent: str | None
    global_ordinal: int | None


class EntryWriter:
    """Turns one step's tables into msprobe's entries; see ``export`` for what has no place in them."""

    def __init__(
        self, tables: StepTables, *, framework: str, tied: dict[str, list[str]], store: Store
    ) -> None:
        self.data: dict[str, object] = {}
        self.construct: dict[str, str | None] = {}
        self.stack: dict[str, object] = {}
        self._framework = framework
        self._tied = tied
        self._store = store
        self._calls = cast(list[_Call], tables.calls.to_dicts())
        self._summaries = cast(list[SummaryRow], tables.summaries.to_dicts())
        self._forward: dict[int, list[Record]] = {}
        self._backward: dict[int, list[Record]] = {}
        self._values: dict[str, dict[str, int]] = {}
        self._gradients: list[tuple[int, str, int, int | None, bool | None]] = []
        self._keys = self._entry_keys()
        self._types = {
            c["name"]: c["type"] or "Module" for c in reversed(self._calls) if c["kind"] == "module"
        }
        self._sort_records(tables)
        self._parameters = self._parameters_of_modules()
        self._build()
        self._stacks(
            dict(zip(tables.stacks["stack"].to_list(), tables.stacks["frames"].to_list(), strict=True))
        )

    # -- keys -----------------------------------------------------------------------------------------------

    def _entry_keys(self) -> list[tuple[str, str] | None]:
        """Forward and backward key of each call; None for the root, losses and parameters."""
        counts: dict[str, int] = {}
        used: set[str] = set()
        keys: list[tuple[str, str] | None] = []
        for call in self._calls:
            base = self._base(call)
            if base is None:
                keys.append(None)
                continue
            number = call["global_ordinal"] if call["global_ordinal"] is not None else counts.get(base, 0)
            while f"{base}.{number}" in used:  # two functions of one short name
                number += 1
            used.add(f"{base}.{number}")
            counts[base] = number + 1
            if call["kind"] == "module":
                keys.append((f"{base}.{FORWARD}.{number}", f"{base}.{BACKWARD}.{number}"))
            else:
                keys.append((f"{base}.{number}.{FORWARD}", f"{base}.{number}.{BACKWARD}"))
        return keys

    def _base(self, call: _Call) -> str | None:
        if call["kind"] == "module":
            return (
                module_base(call["name"], call["type"] or "Module", self._framework) if call["name"] else None
            )
        if call["kind"] in ("api", "collective"):
            return function_base(call["name"], self._framework)
        return None

    def _parent_key(self, call: int, which: int) -> str | None:
        """Key of the innermost call around ``call`` that msprobe lists."""
        row = self._calls[call]["parent"]
        while row is not None:
            keys: tuple[str, str] | None = self._keys[row]
            if keys is not None and (which == 0 or row in self._backward):
                return keys[which]
            row = self._calls[row]["parent"]
        return None

    # -- records --------------------------------------------------------------------------------------------

    def _sort_records(self, tables: StepTables) -> None:
        columns = [
            tables.records[n].to_list()
            for n in ("call", "phase", "slot", "microbatch", "summary", "requires_grad")
        ]
        for row, (call, phase, slot, microbatch, summary, requires_grad) in enumerate(
            zip(*columns, strict=True)
        ):
            if phase in _FORWARD_PHASES:
                self._forward.setdefault(call, []).append((row, slot, summary, requires_grad))
            elif phase == "backward":
                self._backward.setdefault(call, []).append((row, slot, summary, requires_grad))
            elif phase == "param" and summary is not None:
                self._values.setdefault(self._calls[call]["name"], {})[slot] = row
            elif phase == "param_grad" and slot == "accumulated":
                self._gradients.append((row, self._calls[call]["name"], microbatch, summary, requires_grad))
        self._record_summary, self._record_grad = columns[4], columns[5]

    def _parameters_of_modules(self) -> dict[str, list[tuple[str, str]]]:
        """Name of each module -> (own name, fqn under which the trace has it) of its parameters."""
        found: dict[str, list[tuple[str, str]]] = {}
        for fqn in self._values:
            for name in (fqn, *self._tied.get(fqn, ())):
                module, _, own = name.rpartition(".")
                found.setdefault(module, []).append((own, fqn))
        return found

    def _leaf(self, summary: int | None, requires_grad: bool | None, file: str) -> dict[str, object] | None:
        if summary is None:
            return None
        row = self._summaries[summary]
        leaf = tensor_for_dump(row, requires_grad, self._framework)
        stored = self._store(row, file)
        if stored is not None:
            leaf["data_name"] = stored
        return leaf

    # -- entries --------------------------------------------------------------------------------------------

    def _build(self) -> None:
        ends = self._forward_ends()
        events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        for order, call in enumerate(self._innermost_first()):
            if self._keys[call] is None:
                continue
            if self._has_forward(call):
                events.append((ends[call], order, self._forward_entry, (call,)))
            if call in self._backward or self._absent(call, f"{BACKWARD}."):
                row = max((r for r, *_ in self._backward.get(call, ())), default=_LAST)
                events.append((row, order, self._backward_entry, (call,)))
        order = len(self._calls)
        events += [(row, order, self._gradient_entry, entry) for row, entry in self._gradient_entries()]
        for _, _, write, arguments in sorted(events, key=lambda event: event[:2]):
            write(*arguments)
        for call, keys in enumerate(self._keys):
            if keys is not None:
                self.construct[keys[0]] = self._parent_key(call, 0)
        for call in self._backward:
            keys = self._keys[call]
            if keys is not None:
                self.construct[keys[1]] = self._parent_key(call, 1)

    def _has_forward(self, call: int) -> bool:
        row = self._calls[call]
        absent = [s for s in self._absent(call, "") if not s.startswith(f"{BACKWARD}.")]
        return call in self._forward or row["arguments"] is not None or bool(absent)

    def _forward_ends(self) -> list[int]:
        """For each call the row of the last forward record in or below: msprobe lists calls at their end."""
        ends, latest = [], -1
        for call in range(len(self._calls)):
            own = self._forward.get(call)
            latest = max(latest, own[0][0]) if own else latest
            ends.append(own[-1][0] if own else latest)
        for call in range(len(self._calls) - 1, -1, -1):
            parent = self._calls[call]["parent"]
            if parent is not None:
                ends[parent] = max(ends[parent], ends[call])
        return ends

    def _innermost_first(self) -> list[int]:
        """Calls with those inside a call before it."""
        listed: list[int] = []
        around: list[int] = []
        for call, row in enumerate(self._calls):
            while around and around[-1] != row["parent"]:
                listed.append(around.pop())
            around.append(call)
        return listed + around[::-1]

    def _absent(self, call: int, prefix: str) -> list[str]:
        text = self._calls[call].get("absent")
        return [s for s in json.loads(text) if s.startswith(prefix)] if text else []

    def _forward_entry(self, call: int) -> None:
        keys = self._keys[call]
        assert keys is not None
        tree: dict[str, object] = {}
        for _, slot, summary, requires_grad in self._forward.get(call, ()):
            _put(tree, slot, self._leaf(summary, requires_grad, f"{keys[0]}.{_file_slot(slot)}"))
        arguments = self._calls[call]["arguments"]
        for slot, value in (json.loads(arguments) if arguments else {}).items():
            _put(tree, slot, scalar_for_dump(value, slot, self._framework))
        for slot in self._absent(call, ""):
            if not slot.startswith(f"{BACKWARD}."):
                _put(tree, slot, None)
        inputs = cast(_Branch, tree.get("input", {}))
        entry: dict[str, object] = {
            "input_args": _listed({k: v for k, v in inputs.items() if k.isdecimal()}),
            "input_kwargs": {k: _collapsed(v) for k, v in inputs.items() if not k.isdecimal()},
        }
        if "output" in tree:
            output = _collapsed(tree["output"])
            entry["output"] = output if isinstance(output, list) else [output]
        if self._calls[call]["kind"] == "module":
            entry["parameters"] = self._parameter_values(call, keys[0])
        self.data[keys[0]] = entry

    def _parameter_values(self, call: int, key: str) -> dict[str, object]:
        found: dict[str, object] = {}
        for own, fqn in self._parameters.get(self._calls[call]["name"], ()):
            slots = self._values[fqn]
            row = slots.get(f"value.{self._calls[call]['global_ordinal']}", slots.get("value"))
            if row is not None:
                found[own] = self._leaf(
                    self._record_summary[row], self._record_grad[row], f"{key}.parameters.{own}"
                )
        return found

    def _backward_entry(self, call: int) -> None:
        keys = self._keys[call]
        assert keys is not None
        entry = {}
        for reference, own_side in (("input", "output"), ("output", "input")):
            there: dict[str, object] = dict.fromkeys(
                s.removeprefix(f"{BACKWARD}.") for s in self._absent(call, f"{BACKWARD}.{own_side}.")
            )
            found = [r for r in self._backward.get(call, ()) if r[1].startswith(f"{own_side}.")]
            slots = self._gradient_slots(call, own_side, [*there, *(r[1] for r in found)])
            for _, slot, summary, requires_grad in found:
                place = slots.index(slot)
                there[slot] = self._leaf(summary, requires_grad, f"{keys[1]}.{reference}.{place}")
            entry[reference] = [there.get(slot) for slot in slots]
        self.data[keys[1]] = entry

    def _gradient_slots(self, call: int, side: str, slots: list[str]) -> list[str]:
        """Slots of one side in the order of msprobe's list: by index, by tensor where values are nested."""
        if all(slot.count(".") == 1 and slot.rpartition(".")[2].isdecimal() for slot in slots):
            return [
                f"{side}.{n}" for n in range(1 + max((int(s.rpartition(".")[2]) for s in slots), default=-1))
            ]
        forward = [r[1] for r in self._forward.get(call, ()) if r[1].startswith(f"{side}.")]
        return list(dict.fromkeys([s for s in forward if s in slots] + slots))

    def _gradient_entries(self) -> list[tuple[int, tuple[object, ...]]]:
        """One entry a module and accumulation, placed at its last gradient."""
        counts: dict[str, int] = {}
        grouped: dict[str, list[tuple[str, int | None, bool | None]]] = {}
        last: dict[str, int] = {}
        for row, fqn, _, summary, requires_grad in self._gradients:
            number = counts.get(fqn, 0)
            counts[fqn] = number + 1
            for name in (fqn, *self._tied.get(fqn, ())):
                module, _, own = name.rpartition(".")
                if module in self._types and module:
                    base = module_base(module, self._types[module], self._framework)
                    key = f"{base}.{PARAMETERS_GRAD}.{number}"
                    grouped.setdefault(key, []).append((own, summary, requires_grad))
                    last[key] = row
        return [(last[key], (key, leaves)) for key, leaves in grouped.items()]

    def _gradient_entry(self, key: str, leaves: list[tuple[str, int | None, bool | None]]) -> None:
        self.data[key] = {own: [self._leaf(summary, grad, f"{key}.{own}")] for own, summary, grad in leaves}

    # -- stacks ---------------------------------------------------------------------------------------------

    def _stacks(self, frames: dict[int, list[str]]) -> None:
        names: dict[int, list[str]] = {}
        for call, keys in zip(self._calls, self._keys, strict=True):
            if keys is not None and call["stack"] is not None and keys[0] in self.data:
                names.setdefault(call["stack"], []).append(keys[0])
        for number, listed in names.items():
            self.stack[str(number)] = [listed, [frame_for_dump(f) for f in frames.get(number) or ()]]


def frame_for_dump(frame: str) -> str:
    """``x.py:3 f | source`` as ``File x.py, line 3, in f, \\n source``.

    Example:
        >>> frame_for_dump("train.py:128 main | logits = model(x)")
        'File train.py, line 128, in main, \\n logits = model(x)'
    """
    place, _, source = frame.partition(" | ")
    where, _, function = place.partition(" ")
    file, _, line = where.rpartition(":")
    return f"File {file}, line {line}, in {function}, \n {source}"


def _file_slot(slot: str) -> str:
    """``input.dim`` is named ``kwargs.dim`` in file names, ``output.logits`` ``output.0.logits``."""
    side, _, rest = slot.partition(".")
    if rest.partition(".")[0].isdecimal():
        return slot
    return f"kwargs.{rest}" if side == "input" else f"{side}.0.{rest}"


class _Branch(dict[str, object]):
    """Inner node while slots are put together, told apart from the objects at the leaves."""


def _put(tree: dict[str, object], slot: str, leaf: object) -> None:
    *path, last = slot.split(".")
    for part in path:
        inner = tree.get(part)
        if not isinstance(inner, _Branch):
            inner = tree[part] = _Branch()
        tree = inner
    tree[last] = leaf


def _collapsed(node: object) -> object:
    if not isinstance(node, _Branch):
        return node
    if node and all(key.isdecimal() for key in node):
        return _listed(node)
    return {key: _collapsed(value) for key, value in node.items()}


def _listed(node: dict[str, object]) -> list[object]:
    size = 1 + max((int(key) for key in node), default=-1)
    return [_collapsed(node.get(str(index))) for index in range(size)]
