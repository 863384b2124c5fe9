"""The tables of one step as one."""

from __future__ import annotations

import polars as pl

from trueup.store.places import places
from trueup.store.reader import StepTables


def joined_records(tables: StepTables) -> pl.DataFrame:
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
