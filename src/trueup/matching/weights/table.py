"""The weights of one side: what is known of each, and its values where they were kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import polars as pl

from trueup.numerics.content import content_hash
from trueup.numerics.dtypes import DTYPES, float64_from_array
from trueup.store import StepTables, TraceSource
from trueup.types.arrays import Array
from trueup.types.plain import number_from_hex
from trueup.types.trace import ParameterFacts, SummaryRow

Values = Array


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts:
    """What is known of a weight without its values; None where it is not."""

    shape: tuple[int, ...]
    dtype: str
    content: int | None = None
    """``numerics.content``: the same for the same values in another order"""
    digest: int | None = None
    uniform: float | None = None
    """the one value all elements have: such a weight is recognised by its place alone"""
    tied_to: str | None = None


class WeightTable(Protocol):
    """A model's weights: a trace, a file, a dictionary."""

    def names(self) -> Sequence[str]:
        """All names, in the order they are used where that is known."""

    def facts(self, name: str) -> WeightFacts:
        """What is known of one."""

    def read(self, name: str) -> Values | None:
        """Its values as float32 (float64 where they are), or None where they were not kept."""


class StepWeights:
    """The weights of a trace as they were at the start of a step, by default the first that was captured.

    Without a trace, only what the step's tables say of them.
    """

    def __init__(self, trace: TraceSource | None, *, rank: int = 0, tables: StepTables | None = None) -> None:
        self._trace = trace
        self._tables = tables if tables is not None or trace is None else _first_step(trace, rank)
        self._rank = rank
        self._rows = {} if self._tables is None else _rows_of_parameters(self._tables)
        known = {} if trace is None else trace.rank_facts(rank)
        listed = {str(p["fqn"]): p for p in known.get("parameters") or []}
        self._listed = listed or {
            name: ParameterFacts(fqn=name, shape=row["shape"], dtype=row["dtype"], requires_grad=True)
            for name, row in ({} if self._tables is None else _updated(self._tables) | self._rows).items()
        }
        self._order = _in_order_of_use(list(self._listed), self._tables)
        self._facts: dict[str, WeightFacts] = {}

    def names(self) -> Sequence[str]:
        """All names in the order in which the modules that own them are called."""
        return self._order

    def facts(self, name: str) -> WeightFacts:
        """From the parameter table and the record of the weight at the start of the step."""
        if name not in self._facts:
            self._facts[name] = self._known(name)
        return self._facts[name]

    def _known(self, name: str) -> WeightFacts:
        listed, row = self._listed[name], self._row(name)
        stated = listed.get("content")
        content = number_from_hex(stated)
        if content is None and row is not None:
            values = self.read(name)
            # of what is put together from ranks the digest alone is known: the same values in the same order
            content = row["digest"] if values is None else content_hash(values)
        uniform = None
        smallest = None if row is None else row["minimum"]
        if row is not None and smallest is not None and smallest == row["maximum"]:
            uniform = float(smallest)
        return WeightFacts(
            shape=tuple(listed["shape"] if row is None else row["shape"]),  # listed is one rank's part
            dtype=str(listed["dtype"]),
            content=content,
            digest=None if row is None else row["digest"],
            uniform=uniform,
            tied_to=listed.get("tied_to"),
        )

    def _row(self, name: str) -> SummaryRow | None:
        return self._rows.get(name) or self._rows.get(str(self._listed[name].get("tied_to")))

    def read(self, name: str) -> Values | None:
        """The stored values."""
        row = self._row(name)
        if row is None or self._tables is None or self._trace is None or row["dtype"] not in DTYPES:
            return None
        stored = self._trace.tensor(self._tables.step, self._rank, row)
        return None if stored is None else values_of(stored.data, stored.dtype, stored.shape)


def values_of(data: Values, dtype: str, shape: Sequence[int]) -> Values:
    """Raw bytes as float32, float64 where they are; other kinds as they are stored."""
    entry = DTYPES[dtype]
    raw = data.view(np.dtype(entry.storage)).reshape(tuple(shape))
    if entry.kind != "float" or dtype in ("float32", "float64"):
        return raw
    return float64_from_array(raw, dtype).astype(np.float32)


def _first_step(trace: TraceSource, rank: int) -> StepTables | None:
    step = next((s for s, ranks in trace.steps().items() if rank in ranks), None)
    return None if step is None else trace.read(step, rank)


def _updated(tables: StepTables) -> dict[str, SummaryRow]:
    """Row of each weight after its update: where none is known before it, its name and shape all the same."""
    values = tables.records.filter(
        (pl.col("phase").cast(pl.String) == "optimizer")
        & (pl.col("slot").cast(pl.String) == "param")
        & pl.col("summary").is_not_null()
    )
    names = tables.calls["name"].cast(pl.String).to_list()
    rows = tables.summaries.to_dicts() if values.height else []
    return {
        names[call]: cast(SummaryRow, rows[row]) for call, row in values.select("call", "summary").iter_rows()
    }


def _rows_of_parameters(tables: StepTables) -> dict[str, SummaryRow]:
    """Row of ``summaries`` of each weight at the start of the step."""
    values = tables.records.filter((pl.col("phase") == "param") & pl.col("summary").is_not_null())
    names = tables.calls.select(pl.col("call"), pl.col("name").cast(pl.String).alias("fqn"))
    found = values.join(names, on="call").select("fqn", "summary").unique("fqn", keep="first")
    rows = tables.summaries.drop("sketch")
    return {fqn: cast(SummaryRow, rows.row(int(summary), named=True)) for fqn, summary in found.iter_rows()}


def _in_order_of_use(names: list[str], tables: StepTables | None) -> list[str]:
    if tables is None:
        return names
    modules = tables.calls.filter(pl.col("kind") == "module")["name"].cast(pl.String).to_list()
    first: dict[str, int] = {}
    for at, name in enumerate(modules):
        first.setdefault(name, at)

    def place(name: str) -> int:
        owner = name.rpartition(".")[0]
        while owner and owner not in first:
            owner = owner.rpartition(".")[0]
        return first.get(owner, len(modules))

    return sorted(names, key=place)
