"""One step of one rank of a trace, looked up by name: what a parameter, the root or the loss left there."""

from __future__ import annotations

import json
from collections import Counter
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.numerics.dtypes import DTYPES, float64_from_array
from trueup.store import StepTables, TraceSource

Floats = NDArray[np.float64]

UPDATED = ("optimizer", "param")
WEIGHT = ("param", "value")
LOCAL, ACCUMULATED, CLIPPED = (("param_grad", slot) for slot in ("local", "accumulated", "clipped"))


class StepBook:
    """Records of one step and rank by call, phase and slot.

    Example:
        >>> book = StepBook(trace, 0, 0)                              # doctest: +SKIP
        >>> book.value(book.parameter("emb.weight", *WEIGHT)).shape   # doctest: +SKIP
        (1000, 64)
    """

    def __init__(self, source: TraceSource, step: int, rank: int) -> None:
        self.source, self.step, self.rank = source, step, rank
        self.tables: StepTables = source.read(step, rank)
        calls, records = self.tables.calls, self.tables.records
        self._kind, self._name = calls["kind"].cast(str).to_list(), calls["name"].cast(str).to_list()
        self._mode, self._parent = calls["mode"].cast(str).to_list(), calls["parent"].to_list()
        self._call = records["call"].to_list()
        self.phase, self.slot = records["phase"].cast(str).to_list(), records["slot"].cast(str).to_list()
        self.microbatch, self._summary = records["microbatch"].to_list(), records["summary"].to_list()
        self._values: dict[int, Floats | None] = {}

    @cached_property
    def _by_parameter(self) -> dict[str, dict[tuple[str, str], list[int]]]:
        return self._parameter_records()

    def _parameter_records(self) -> dict[str, dict[tuple[str, str], list[int]]]:
        found: dict[str, dict[tuple[str, str], list[int]]] = {}
        for record, call in enumerate(self._call):
            if self._kind[call] == "parameter":
                slots = found.setdefault(self._name[call], {})
                slots.setdefault((self.phase[record], self.slot[record]), []).append(record)
        return found

    @property
    def parameters(self) -> list[str]:
        """Parameters in the order they first appear."""
        return list(self._by_parameter)

    def in_order_of(self, phase: str, slot: str) -> list[str]:
        """Parameters that have such a record, in the order the records were made."""
        first = {fqn: min(s[phase, slot]) for fqn, s in self._by_parameter.items() if (phase, slot) in s}
        return sorted(first, key=first.__getitem__)

    def parameter(self, fqn: str, phase: str, slot: str) -> int | None:
        """The last record of a parameter under a phase and slot."""
        found = self._by_parameter.get(fqn, {}).get((phase, slot))
        return found[-1] if found else None

    def parameter_records(self, fqn: str, phase: str, slot: str) -> list[int]:
        """All of them, one a microbatch for gradients."""
        return self._by_parameter.get(fqn, {}).get((phase, slot), [])

    def slots(self, fqn: str, phase: str) -> list[str]:
        """Slots of a parameter in a phase."""
        return [slot for p, slot in self._by_parameter.get(fqn, {}) if p == phase]

    def root_inputs(self) -> list[tuple[int, str, int]]:
        """(microbatch, slot, record) of what the outermost training calls of the main root were given."""
        found = []
        for record, call in enumerate(self._call):
            outermost = self._kind[call] == "module" and self._name[call] == "" and self._parent[call] is None
            given = self.phase[record] == "forward" and self.slot[record].startswith("input")
            if outermost and given and self._mode[call] == "train":
                found.append((self.microbatch[record], self.slot[record], record))
        return found

    def loss_records(self, slot: str) -> list[tuple[int, int]]:
        """(microbatch, record) of a slot of the loss calls."""
        return [
            (self.microbatch[record], record)
            for record, call in enumerate(self._call)
            if self._kind[call] == "loss" and self.slot[record].partition(".")[0] == slot
        ]

    @cached_property
    def criteria(self) -> set[str]:
        """Modules that return the very loss, but for the root."""
        return self._returning_loss - {""}

    @property
    def root_returns_loss(self) -> bool:
        """Whether the outermost module does."""
        return "" in self._returning_loss

    @cached_property
    def _returning_loss(self) -> set[str]:
        losses = {self._summary[record] for _, record in self.loss_records("value")} - {None}
        return {
            self._name[call]
            for record, call in enumerate(self._call)
            if self._summary[record] in losses
            and self._kind[call] == "module"
            and self.phase[record] == "forward"
            and self.slot[record].startswith("output")
        }

    def around_loss(self, microbatch: int) -> list[tuple[str, str, int]]:
        """(module, slot, record) of what the modules that return the loss were given, and of what the
        outermost one was given and returned, in one microbatch."""
        return [
            (self._name[call], self.slot[record], record)
            for record, call in enumerate(self._call)
            if self.phase[record] == "forward"
            and self._kind[call] == "module"
            and self._mode[call] == "train"
            and self.microbatch[record] == microbatch
            and (self._name[call] == "" or self._name[call] in self.criteria)
        ]

    def summary_number(self, record: int) -> int | None:
        """The row of summaries of a record, by number: the same for records of one content."""
        number: int | None = self._summary[record]
        return number

    def exchanges(self, module: str) -> Counter[tuple[str, tuple[int, ...]]]:
        """Collectives that a module's own code calls in its forward: name and ranks, none where all take
        part."""
        told = self.tables.calls["arguments"].cast(str).to_list()
        return Counter(
            (self._name[call], _group_in(told[call]))
            for call, parent in enumerate(self._parent)
            if self._kind[call] == "collective"
            and parent is not None
            and (self._kind[parent], self._name[parent]) == ("module", module)
        )

    def loss_arguments(self) -> str | None:
        """What the first loss call was told besides tensors, as JSON."""
        told = self.tables.calls["arguments"].cast(str).to_list()
        return next((a for kind, a in zip(self._kind, told, strict=True) if kind == "loss" and a), None)

    # -- what a record holds ------------------------------------------

    def summary(self, record: int | None) -> dict[str, Any] | None:
        """The row of summaries of a record."""
        if record is None or self._summary[record] is None:
            return None
        return self.tables.summaries.row(self._summary[record], named=True)

    def digest(self, record: int | None) -> int | None:
        """Its 64-bit digest."""
        found = self._one(record, "digest")
        return None if found is None else int(found)

    def norm(self, record: int | None) -> float | None:
        """Its L2 norm."""
        found = self._one(record, "l2_norm")
        return None if found is None else float(found)

    def sketch(self, record: int | None) -> Floats | None:
        """Its 64 numbers."""
        found = self._one(record, "sketch")
        return None if found is None else np.frombuffer(found, "<f4").astype(np.float64)

    def shared_sketch(self, record: int | None) -> Floats | None:
        """The same, comparable with that of such a tensor in any book."""
        return self.sketch(record)

    def dtype(self, record: int | None) -> str | None:
        """Its element type."""
        found = self._one(record, "dtype")
        return None if found is None else str(found)

    def _one(self, record: int | None, column: str) -> Any:
        if record is None or self._summary[record] is None:
            return None
        return self.tables.summaries[column][self._summary[record]]

    def value(self, record: int | None) -> Floats | None:
        """Its values as float64, None where they were not stored."""
        if record is None:
            return None
        number = self._summary[record]
        if number not in self._values:
            self._values[number] = self._read(record)
        return self._values[number]

    def sample(self, record: int | None, limit: int = 1 << 18) -> Floats | None:
        """Up to ``limit`` of its values, evenly spread and in order; the same places in every tensor of a
        size."""
        found = self.raw(record)
        if found is None or DTYPES[found[0]].kind == "complex":
            return None
        flat = found[1].reshape(-1)
        return float64_from_array(flat[:: max(1, -(-flat.size // limit))], found[0])

    def raw(self, record: int | None) -> tuple[str, NDArray[Any]] | None:
        """Dtype and stored elements as they are (bfloat16 as uint16)."""
        row = self.summary(record)
        stored = None if row is None else self.source.tensor(self.step, self.rank, row)
        if stored is None or stored.dtype not in DTYPES:
            return None
        return stored.dtype, stored.data.view(np.dtype(DTYPES[stored.dtype].storage)).reshape(stored.shape)

    def _read(self, record: int) -> Floats | None:
        found = self.raw(record)
        if found is None or DTYPES[found[0]].kind == "complex":
            return None
        return float64_from_array(found[1], found[0])


def _group_in(arguments: str | None) -> tuple[int, ...]:
    """The ranks of a collective's group, as capture writes them among its arguments."""
    told = json.loads(arguments) if arguments else {}
    found = next((v for k, v in told.items() if isinstance(v, str) and v.replace(" ", "").isdigit()), "")
    return tuple(map(int, found.split()))
