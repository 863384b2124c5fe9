"""The plan of one step of one rank: its calls paired, a row for every record that has a partner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on

from trueup.comparing.pairing import StepPair
from trueup.diagnosing.replay.converted import ConvertedValues, Part
from trueup.diagnosing.replay.pairs import paired_step
from trueup.diagnosing.replay.recomputed import originals
from trueup.errors import ConfigError
from trueup.matching import StepMatch
from trueup.matching.layouts import CommonForm
from trueup.numerics.dtypes import DTYPES
from trueup.store import Trace, step_view
from trueup.store.left_free import left_free_from_plain
from trueup.store.view import WEIGHT
from trueup.types.codes import LeftFree
from trueup.types.reason import Json, Reason, reason
from trueup.types.trace import LeftFreeDocument, SummaryRow

COLUMNS = pa.schema(
    [
        ("place", pa.dictionary(pa.int32(), pa.string())),
        ("phase", pa.dictionary(pa.int32(), pa.string())),
        ("slot", pa.dictionary(pa.int32(), pa.string())),
        ("use", pa.dictionary(pa.int32(), pa.string())),
        ("reference_record", pa.int32()),
        ("digest", pa.uint64()),
        ("norm", pa.float64()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("chunk", pa.int32()),
        ("tensor", pa.string()),
    ]
)
"""One row a record of the free run that has a partner; ``use``: ``force``, ``compare`` (looked at, never
overwritten) or ``silent`` (a forward run again inside backward: overwritten, not spoken of)."""

FORCED_PHASES = ("forward", "backward")
COMPARED_PHASES = ("param", "param_grad", "loss")
KINDS_OF_LEVEL = {"L0": ("module",), "L1": ("api",), "mix": ("module", "api")}

NO_VALUES = Reason(LeftFree.NO_VALUES)
NUM_CALLS_DIFFERS = Reason(LeftFree.NUM_CALLS_DIFFERS)
LAYOUT_NOT_INVERTIBLE = Reason(LeftFree.LAYOUT_NOT_INVERTIBLE)
CALL_ORDER_DIFFERS = Reason(LeftFree.CALL_ORDER_DIFFERS)
PLACE_NOT_UNIQUE = Reason(LeftFree.PLACE_NOT_UNIQUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is not replaced, by reason."""

    reason: Reason
    count: int
    examples: tuple[str, ...]


def left_as_json(left: Left) -> dict[str, Json]:
    """As plan.json and a replayed process write it."""
    return {"reason": left.reason.to_json(), "count": left.count, "examples": list(left.examples)}


def left_from_json(plain: LeftFreeDocument) -> Left:
    """What ``left_as_json`` made."""
    why = left_free_from_plain(plain["reason"])
    return Left(reason=why, count=plain["count"], examples=tuple(plain["examples"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The plan of one step of one rank."""

    step: int
    rank: int
    reference_step: int
    reference_rank: int
    num_forced: int
    num_compared: int
    left: tuple[Left, ...]


class StepDocument(TypedDict):
    """One of the ``steps`` of ``plan.json``."""

    step: int
    rank: int
    reference_step: int
    reference_rank: int
    num_forced: int
    num_compared: int
    left: Sequence[LeftFreeDocument]


def step_from_json(plain: StepDocument) -> StepPlan:
    """The plan of one step as ``plan.json`` holds it."""
    return StepPlan(
        step=plain["step"],
        rank=plain["rank"],
        reference_step=plain["reference_step"],
        reference_rank=plain["reference_rank"],
        num_forced=plain["num_forced"],
        num_compared=plain["num_compared"],
        left=tuple(map(left_from_json, plain["left"])),
    )


@dataclass(slots=True)
class _Rows:
    columns: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in COLUMNS.names})

    def add(self, place: str, phase: str, slot: str, use: str, record: int, summary: SummaryRow) -> None:
        values = (place, phase, slot, use, record, summary["digest"], summary["l2_norm"], summary["dtype"])
        row = (*values, summary["shape"], summary["chunk"], summary["tensor"])
        for name, value in zip(COLUMNS.names, row, strict=True):
            self.columns[name].append(value)


class StepBuilder:
    """Pairs one step of one rank."""

    MAX_EXAMPLES = 3

    def __init__(
        self,
        target: Trace,
        reference: Trace,
        step: int,
        rank: int,
        level: str,
        inside: tuple[str, ...],
        converted: Path,
    ) -> None:
        """``converted``: folder for values that lie otherwise in the target than in the reference."""
        self._step, self._rank = step, rank
        self._target, self._reference = step_view(target, step, rank), step_view(reference, step, rank)
        pair = StepPair(step=step, rank=rank, reference_step=step, reference_rank=rank)
        self._match: StepMatch = paired_step(
            (target, reference), (self._target.tables, self._reference.tables), pair
        )
        self._converted = ConvertedValues(reference, step, rank, converted)
        self._kinds = KINDS_OF_LEVEL[level]
        self._inside = inside
        self._rows = _Rows()
        self._left: Counter[Reason] = Counter()
        self._examples: dict[Reason, list[str]] = {}
        self._counts: Counter[str] = Counter()
        if inside:
            self._check_inside()

    def _check_inside(self) -> None:
        unknown = [name for name in self._inside if not self._target.named("module", name)]
        if unknown:
            raise ConfigError(
                f"no module {unknown[0]!r} is called in step {self._step} of the target; "
                "trueup inspect FOLDER --step N lists them"
            )

    # In one piece: one pass over the records; each is left out or planned for one of several reasons.
    def build(self, *, outputs_of: frozenset[str] = frozenset()) -> StepBuilder:
        """Every record, once; where ``outputs_of`` names modules, of the forced ones only what these give."""
        view = self._target
        unsure = {
            **dict.fromkeys(self._below(self._crossed()), CALL_ORDER_DIFFERS),
            **dict.fromkeys(self._below(self._calls_of_unequal_count()), NUM_CALLS_DIFFERS),
        }
        twice = {place for place, count in Counter(view.places).items() if count > 1}
        partners = self._partners()
        again = originals(view)
        for row, (call, phase, slot) in enumerate(zip(view.record_call, view.phase, view.slot, strict=True)):
            use = self._use(call, phase)
            if use is None or (use == "force" and outputs_of and not self._is_given_by(outputs_of, row)):
                continue
            others = partners.get(row)
            if phase == "forward" and view.mode[call] == "recompute":
                use, first = "silent", again.get(row)
                others = others if first is None else partners.get(first)
            if others is None:
                continue
            other, layout = others[0]
            summary = self._reference.summary(other)
            why = self._why_not(call, unsure, twice, summary, use)
            if why is None and (len(others) > 1 or layout is not None):
                parts = ((self._reference.summary(at), one) for at, one in others)
                found = [(summary, one) for summary, one in parts if summary is not None]
                summary = self._laid_out(row, found) if len(found) == len(others) else None
                why = LAYOUT_NOT_INVERTIBLE if summary is None else None
            if why is None and summary is not None:
                self._rows.add(view.places[call], phase, slot, use, other, summary)
                self._counts[use] += 1
            elif use != "silent":
                self._leave(row, why or NO_VALUES)
        unpaired = self._match.records.only_target.tolist()
        for row, why in zip(unpaired, self._match.why_only_target(), strict=True):
            call = view.record_call[row]
            forced = self._use(call, view.phase[row]) == "force" and not outputs_of
            if forced and view.mode[call] != "recompute":
                self._leave(row, why)
        return self

    def _partners(self) -> dict[int, list[tuple[int, CommonForm | None]]]:
        """Record of the target -> the reference's records that hold its values, with their layouts."""
        records = self._match.records
        layouts = records.layouts or (None,) * len(records.target)
        found: dict[int, list[tuple[int, CommonForm | None]]] = {}
        pairs = zip(records.target.tolist(), records.reference.tolist(), layouts, strict=True)
        for target, reference, layout in pairs:
            found.setdefault(target, []).append((reference, layout))
        return found

    def _laid_out(self, row: int, parts: list[Part]) -> SummaryRow | None:
        """A summary of the reference's values, written anew in the order the target has them in."""
        own = self._match.target.record_summary[row]
        shape = None if own < 0 else self._match.words.shape[self._match.target.summary_shape[own]]
        return None if shape is None else self._converted.write(tuple(shape), parts)

    def _use(self, call: int, phase: str) -> str | None:
        kind = self._target.kind[call]
        if phase in COMPARED_PHASES and kind in ("parameter", "loss"):
            return "compare"
        if phase not in FORCED_PHASES or kind not in self._kinds:
            return None
        if kind == "api" and self._inside:
            return "force" if self._target.caller(call) in self._inside else None
        return "force"

    def _is_given_by(self, modules: frozenset[str], row: int) -> bool:
        view = self._target
        call, made = view.record_call[row], "output" if view.phase[row] == "forward" else "input"
        return (
            view.kind[call] == "module"
            and view.name[call] in modules
            and view.slot[row].partition(".")[0] == made
        )

    def _why_not(
        self, call: int, unsure: dict[int, Reason], twice: set[str], summary: SummaryRow | None, use: str
    ) -> Reason | None:
        if summary is None:
            return NO_VALUES
        if use == "compare":
            return None
        if summary["tensor"] is None:
            return NO_VALUES
        if call in unsure:
            return unsure[call]
        if (outside := self._outside_table(call, summary)) is not None:
            return outside
        return PLACE_NOT_UNIQUE if self._target.places[call] in twice else None

    def _outside_table(self, call: int, summary: SummaryRow) -> Reason | None:
        """Indices into a module's table that it has no row for: put in, they would end the program."""
        lowest, largest = summary["minimum"], summary["maximum"]
        known = DTYPES.get(summary["dtype"])
        if known is None or known.kind not in ("int", "uint") or lowest is None or largest is None:
            return None
        view = self._target
        module = view.name[call] if view.kind[call] == "module" else view.caller(call)
        table = view.shape(view.parameter(f"{module}.weight", *WEIGHT))
        if table is None or len(table) != 2 or 0 <= lowest <= largest < table[0]:
            return None
        return reason(LeftFree.OUTSIDE_TABLE, size=int(table[0]), largest=int(largest))

    def _leave(self, row: int, why: Reason) -> None:
        self._left[why] += 1
        view = self._target
        examples = self._examples.setdefault(why, [])
        if len(examples) < self.MAX_EXAMPLES:
            name = view.name[view.record_call[row]] or "(root)"
            examples.append(f"{name} {view.phase[row]} {view.slot[row]}")

    def _calls_of_unequal_count(self) -> set[int]:
        """Calls of a name that is called more or less often under the paired parent."""
        target, reference = self._match.target, self._match.reference
        counted = []
        for side, partner in ((target, None), (reference, self._match.calls.target_of)):
            parent = side.parent if partner is None else _through(side.parent, partner)
            keys = zip(
                parent.tolist(), side.kind.tolist(), side.plain.tolist(), side.mode.tolist(), strict=True
            )
            counted.append(list(keys))
        target_counts, reference_counts = Counter(counted[0]), Counter(counted[1])
        paired = set(np.flatnonzero(self._match.calls.reference_of >= 0).tolist()) | {-1}
        return {
            call
            for call, key in enumerate(counted[0])
            if key[0] in paired and key in reference_counts and target_counts[key] != reference_counts[key]
        }

    def _crossed(self) -> set[int]:
        """Modules paired by position, not by weights, with one of another name that both runs call."""
        if self._match.bridge is not None:
            return set()
        target, reference, pairs = self._match.target, self._match.reference, self._match.calls
        names = {
            (int(parent), int(name))
            for parent, name in zip(_through(reference.parent, pairs.target_of), reference.plain, strict=True)
        }
        return {
            call
            for call in self._target.calls_of_kind("module")
            if pairs.reference_of[call] >= 0
            and target.plain[call] != reference.plain[pairs.reference_of[call]]
            and (int(target.parent[call]), int(target.plain[call])) in names
        }

    def _below(self, calls: set[int]) -> set[int]:
        """These calls and all inside them."""
        found = set()
        for call, parent in enumerate(self._target.parent):
            if call in calls or parent in found:
                found.add(call)
        return found

    def table(self) -> pa.Table:
        """The rows as a table."""
        arrays = []
        for column in COLUMNS:
            values = self._rows.columns[column.name]
            if pa.types.is_dictionary(column.type):
                arrays.append(pa.array(values, pa.string()).dictionary_encode())
            else:
                arrays.append(pa.array(values, column.type))
        return pa.Table.from_arrays(arrays, schema=COLUMNS)

    def plan(self) -> StepPlan:
        """What was written."""
        left = tuple(
            Left(reason=why, count=count, examples=tuple(self._examples[why]))
            for why, count in self._left.most_common()
        )
        return StepPlan(
            step=self._step,
            rank=self._rank,
            reference_step=self._step,
            reference_rank=self._rank,
            num_forced=self._counts["force"],
            num_compared=self._counts["compare"],
            left=left,
        )


def _through(parents: Any, partner: Any) -> Any:
    """Parents of the reference as the target numbers them; -2 where they have no partner."""
    if not len(partner):
        return parents
    return np.where(parents < 0, -1, np.where(partner[parents] < 0, -2, partner[parents]))
