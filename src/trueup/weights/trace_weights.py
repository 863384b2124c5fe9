"""The initial weights of a run, from its trace: parameters at the start of the first captured step."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from trueup.errors import WeightsError
from trueup.numerics.dtypes import DTYPES
from trueup.store import Trace
from trueup.types.trace import SummaryRow
from trueup.weights.plan import Values
from trueup.weights.weight_set import Table, WeightInfo, known, same_bits, values_from_bytes


class TraceWeights:
    """A ``WeightSet`` over the parameters a trace stored.

    Where ranks hold different parameters (pipeline stages), all are taken; where they hold parts of one
    (tensor parallel), it is left out, for a trace does not say how to join them.

    Raises:
        WeightsError: no whole step, or no values of parameters in it.
        TraceError: the trace cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._trace = Trace(path)
        steps = self._trace.steps()
        if not steps:
            raise WeightsError(f"{path} has no whole step, hence no weights")
        self.step, ranks = next(iter(steps.items()))
        self._rows: dict[str, tuple[int, SummaryRow]] = {}
        remarks: dict[str, str] = {}
        for rank in ranks:
            self._add_rank(rank, remarks)
        for name in remarks:
            self._rows.pop(name, None)
        if not self._rows:
            raise WeightsError(
                f"{path} holds no values of parameters; capture with --preset diagnose or --task tensor. "
                + "; ".join(list(remarks.values())[:2])
            )
        self.remarks: tuple[str, ...] = tuple(remarks.values())
        if self.step:
            self.remarks += (f"these are the weights at step {self.step}, the first one captured",)
        self.table: Table = {
            name: WeightInfo(name=name, dtype=row["dtype"], shape=tuple(row["shape"]))
            for name, (_, row) in self._rows.items()
        }

    def read(self, name: str) -> Values:
        """One parameter as it was when the step began."""
        rank, row = self._rows[known(self, name)]
        stored = self._trace.tensor(self.step, rank, row)
        if stored is None:
            raise WeightsError(f"{self.path}: the values of {name} are gone")
        return values_from_bytes(stored.data, self.table[name])

    def _add_rank(self, rank: int, remarks: dict[str, str]) -> None:
        for name, row in _parameters(self._trace, self.step, rank):
            if row["tensor"] is None:
                remarks[name] = f"{name} is left out: its values were not stored"
            elif row["dtype"] not in DTYPES:
                remarks[name] = f"{name} is left out: dtype {row['dtype']} is not supported"
            elif _is_shard(row):
                remarks[name] = f"{name} is left out: rank {rank} holds a shard of it"
            elif name not in self._rows:
                self._rows[name] = rank, row
            elif not self._same(self._rows[name], (rank, row)):
                ranks = f"ranks {self._rows[name][0]} and {rank}"
                remarks[name] = f"{name} is left out: {ranks} hold different values of it (shards?)"

    def _same(self, one: tuple[int, SummaryRow], other: tuple[int, SummaryRow]) -> bool:
        if (one[1]["dtype"], one[1]["shape"]) != (other[1]["dtype"], other[1]["shape"]):
            return False
        if one[1]["digest"] is not None and other[1]["digest"] is not None:
            return bool(one[1]["digest"] == other[1]["digest"])
        stored = [self._trace.tensor(self.step, rank, row) for rank, row in (one, other)]
        return all(found is not None for found in stored) and same_bits(stored[0].data, stored[1].data)  # type: ignore[union-attr]


def _is_shard(row: SummaryRow) -> bool:
    """Whether a placement says that the whole has another shape."""
    placement = json.loads(row["placement"]) if row["placement"] else {}
    return tuple(placement.get("global_shape") or row["shape"]) != tuple(row["shape"])


def _parameters(trace: Trace, step: int, rank: int) -> list[tuple[str, SummaryRow]]:
    """Name and row of summaries of every parameter at the start of the step."""
    tables = trace.read(step, rank)
    chosen = (
        tables.records.filter((pl.col("phase") == "param") & (pl.col("slot") == "value"))
        .join(tables.calls.select("call", "name"), on="call")
        .filter(pl.col("summary").is_not_null())
        .select("name", "summary")
    )
    return [
        (str(name), tables.summary_row(int(summary)))
        for name, summary in chosen.cast({"name": pl.String}).rows()
    ]
