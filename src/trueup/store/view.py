"""One step of one rank of a trace, looked up by call, by site, by parameter and by record.

The rows of the tables are the numbers of calls and records; -1 is no call. Each column is read when it is
first asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property

import polars as pl

from trueup.errors import TraceError
from trueup.store import layout
from trueup.store.call_tree import CallTree, grouped
from trueup.store.parquet import frame_from_parquet
from trueup.store.passes import BackwardPass, backward_passes, runs_ahead
from trueup.store.places import places
from trueup.store.reader import StepTables, TraceSource
from trueup.store.recorded import RecordedTensors
from trueup.types.trace import RankFacts

Slot = tuple[str, str]
"""phase, slot"""
WEIGHT: Slot = ("param", "value")
UPDATED: Slot = ("optimizer", "param")
LOCAL: Slot = ("param_grad", "local")
ACCUMULATED: Slot = ("param_grad", "accumulated")
CLIPPED: Slot = ("param_grad", "clipped")


class StepView(CallTree, RecordedTensors):
    """Calls and records of one step.

    Example:
        >>> view = step_view(trace, 0, 0)                              # doctest: +SKIP
        >>> view.value(view.parameter("emb.weight", *WEIGHT)).shape    # doctest: +SKIP
        (1000, 64)
    """

    @cached_property
    def facts(self) -> RankFacts:
        """What the rank says of itself: parameters, optimizers, settings."""
        return self.source.rank_facts(self.rank)

    @cached_property
    def passes(self) -> tuple[BackwardPass, ...]:
        """The backward passes of a step that runs several forwards before them, as they ran."""
        return backward_passes(self.tables) if runs_ahead(self.tables) else ()

    # -- records ------------------------------------------

    @cached_property
    def record_call(self) -> list[int]:
        """The call of a record."""
        return self.tables.records["call"].fill_null(-1).to_list()

    @cached_property
    def phase(self) -> list[str]:
        """``param forward loss backward param_grad optimizer collective``"""
        return self._record_words("phase").to_list()

    @cached_property
    def slot(self) -> list[str]:
        """``input.0 output.0 value local`` ..."""
        return self._record_words("slot").to_list()

    @cached_property
    def record_microbatch(self) -> list[int]:
        """Microbatch of a record."""
        return self.tables.records["microbatch"].fill_null(0).to_list()

    @cached_property
    def requires_grad(self) -> list[bool | None]:
        """Whether a tensor is part of the autograd graph."""
        found: list[bool | None] = self.tables.records["requires_grad"].to_list()
        return found

    @cached_property
    def reason(self) -> list[str | None]:
        """Why a record has no summary, or what is special about it."""
        return self._record_words("reason").to_list()

    def records(self, call: int, phase: str | None = None) -> list[int]:
        """Records of a call, in order."""
        return [r for r in self._of_call.get(call, []) if phase is None or self.phase[r] == phase]

    def record(self, call: int, phase: str, slot: str, microbatch: int | None = None) -> int | None:
        """The record at a slot of a call, the last one where microbatches are not told apart."""
        found = [
            record
            for record in self.records(call, phase)
            if self.slot[record] == slot and microbatch in (None, self.record_microbatch[record])
        ]
        return found[-1] if found else None

    @cached_property
    def frame(self) -> pl.DataFrame:
        """Every record beside its call and its summary (``store.joined``)."""
        return _joined(self.tables)

    def frame_of(self, phase: str, *slots: str) -> pl.DataFrame:
        """Rows of ``frame`` of a phase, of these slots if any are named, that have a summary."""
        found = self.once(
            ("frame", phase),
            lambda: self.frame.filter(pl.col("phase") == phase, pl.col("summary").is_not_null()),
        )
        return found.filter(pl.col("slot").is_in(slots)) if slots else found

    @cached_property
    def holding_reference(self) -> frozenset[int]:
        """Records at which a replay saw to it that the reference's value stands."""
        file = layout.rank_dir(self.source.path, self.step, self.rank) / "forced.parquet"
        if not file.is_file():
            return frozenset()
        try:
            table = frame_from_parquet(file, remedy="replay again").select("record", "state")
        except (TraceError, pl.exceptions.PolarsError):
            return frozenset()
        held = table.filter(pl.col("state").cast(pl.String).is_in(["equal", "replaced"]))
        return frozenset(held["record"].drop_nulls().to_list())

    # -- parameters ------------------------------------------

    @cached_property
    def of_parameter(self) -> Mapping[str, Mapping[Slot, list[int]]]:
        """Parameter, phase and slot -> records in order: of gradients one a microbatch."""
        return self._parameter_records()

    def _parameter_records(self) -> dict[str, dict[Slot, list[int]]]:
        found: dict[str, dict[Slot, list[int]]] = {}
        for record, call in enumerate(self.record_call):
            if call >= 0 and self.kind[call] == "parameter":
                slots = found.setdefault(self.name[call], {})
                slots.setdefault((self.phase[record], self.slot[record]), []).append(record)
        return found

    @property
    def parameters(self) -> list[str]:
        """Names of parameters in the order they first appear."""
        return list(self.of_parameter)

    def parameters_with(self, phase: str, slot: str) -> list[str]:
        """Parameters that have such a record, in the order of the records."""
        first = {fqn: min(s[phase, slot]) for fqn, s in self.of_parameter.items() if (phase, slot) in s}
        return sorted(first, key=first.__getitem__)

    def parameter(self, fqn: str, phase: str, slot: str) -> int | None:
        """The last record of a parameter under a phase and slot."""
        found = self.parameter_records(fqn, phase, slot)
        return found[-1] if found else None

    def parameter_records(self, fqn: str, phase: str, slot: str) -> list[int]:
        """All of them."""
        return self.of_parameter.get(fqn, {}).get((phase, slot), [])

    def parameter_slots(self, fqn: str, phase: str) -> list[str]:
        """Slots of a parameter in a phase."""
        return [slot for one, slot in self.of_parameter.get(fqn, {}) if one == phase]

    def parameter_call(self, fqn: str) -> int | None:
        """The call that stands for a parameter."""
        return next(iter(self.named("parameter", fqn)), None)

    def _record_words(self, column: str) -> pl.Series:
        words: pl.Series = self.tables.records[column].cast(pl.String)
        return words

    @cached_property
    def _of_call(self) -> dict[int, list[int]]:
        return grouped(self.record_call)


_KEPT = 8
_LARGE = 32 << 20
"""bytes of summaries, of some 80,000 records: read in a twentieth of the time that their comparison takes"""
_recent: OrderedDict[tuple[int, int, int], StepView] = OrderedDict()
"""a view holds its source, so that the source's id names it for as long as the entry lives"""


def step_view(source: TraceSource, step: int, rank: int) -> StepView:
    """The view of one step of one rank; the last few are kept.

    Raises:
        TraceError: the step or rank is not there.
    """
    key = (id(source), step, rank)
    found = _recent.get(key)
    if found is None:
        found = _recent[key] = StepView(source, source.read(step, rank))
    _recent.move_to_end(key)
    while len(_recent) > _KEPT:
        _recent.popitem(last=False)
    return found


def forget_large(*sources: TraceSource) -> None:
    """Keep no views of these whose tables take much memory: who asks again has them read again."""
    for key, view in list(_recent.items()):
        large = view.tables.summaries.estimated_size() > _LARGE
        if large and any(view.source is source for source in sources):
            del _recent[key]


def view_if_there(source: TraceSource, step: int, rank: int) -> StepView | None:
    """The same; None where the trace has no such step and rank, or it cannot be read."""
    if rank not in source.steps().get(step, []):
        return None
    try:
        return step_view(source, step, rank)
    except TraceError:
        return None


def _joined(tables: StepTables) -> pl.DataFrame:
    """Every record beside its call and its summary, in execution order.

    Columns of records, calls (but their microbatch) and summaries; ``record`` (row), ``place`` of the call,
    ``module`` that makes the call. Words are strings.
    """
    calls = tables.calls.with_columns(
        pl.col("kind", "name", "type", "mode", "arguments").cast(pl.String),
        pl.Series("place", places(tables.calls)),
    )
    callers = calls.select(parent="call", module="name")
    calls = calls.join(callers, on="parent", how="left", maintain_order="left").drop(
        "microbatch", "global_ordinal"
    )
    summaries = tables.summaries.with_columns(pl.col("dtype", "device", "placement").cast(pl.String))
    return (
        tables.records.with_row_index("record")
        .with_columns(pl.col("phase", "slot", "reason").cast(pl.String))
        .join(calls, on="call", how="left", maintain_order="left")
        .join(summaries, on="summary", how="left", maintain_order="left")
    )
