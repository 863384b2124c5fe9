"""Curves from TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from trueup.curves.columns import find_columns
from trueup.curves.readers.protocol import LogRows
from trueup.curves.readers.tables import rows_from_table
from trueup.errors import TraceError
from trueup.store.events import VERSION, scalars


class EventFile:
    """``events.out.tfevents.*``."""

    name = "tensorboard"
    title = "TensorBoard events"
    appendable = False

    def recognises(self, head: bytes, path: Path) -> bool:
        """Whether its first record is the version of the format."""
        return VERSION in head[:64] and len(head) >= 12

    def read(self, data: bytes, path: Path, chosen: Mapping[str, str]) -> LogRows:
        """One row a step; a record that is half written ends the reading.

        Raises:
            TraceError: it holds no scalar of a curve; says which it holds.
        """
        by_tag: dict[str, list[tuple[int, float]]] = {}
        for step, tag, value in scalars(data):
            by_tag.setdefault(tag, []).append((step, value))
        found = dict(find_columns(by_tag, chosen).values())
        if not found:
            raise TraceError(
                f"{path} holds no scalar of a curve that is known; it holds {', '.join(list(by_tag)[:12])}. "
                "Say which with --column loss=TAG"
            )
        table = None
        for name in found:
            one = pl.DataFrame(by_tag[name], schema={"step": pl.Int64, name: pl.Float64}, orient="row")
            one = one.with_columns(pl.col("step").cum_count().over("step").alias("#"))
            table = one if table is None else table.join(one, on=["step", "#"], how="full", coalesce=True)
        assert table is not None
        return rows_from_table(table.drop("#"), {**chosen, "step": "step"}, path)
