"""Rows of a merged step as the tables of docs/trace-format.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from trueup.merging.summary import STATISTICS, Summary

_Type = pl.DataType | type[pl.DataType]
CALLS: Mapping[str, _Type] = {
    "call": pl.Int32,
    "parent": pl.Int32,
    "kind": pl.String,
    "name": pl.String,
    "type": pl.String,
    "ordinal": pl.Int32,
    "microbatch": pl.Int32,
    "mode": pl.String,
    "opaque": pl.Boolean,
    "stack": pl.Int32,
    "arguments": pl.String,
    "global_ordinal": pl.Int32,
}
RECORDS: Mapping[str, _Type] = {
    "call": pl.Int32,
    "phase": pl.String,
    "slot": pl.String,
    "microbatch": pl.Int32,
    "summary": pl.Int32,
    "requires_grad": pl.Boolean,
    "reason": pl.String,
}
STACKS: Mapping[str, _Type] = {"stack": pl.Int32, "frames": pl.List(pl.String)}


def table(rows: Sequence[tuple[object, ...]], schema: Mapping[str, _Type]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row")


def summaries_table(rows: Sequence[Summary], stored: Sequence[bool]) -> pl.DataFrame:
    kinds = {name: pl.Int64 if name.startswith("num") else pl.Float64 for name in STATISTICS}
    sketches = [None if one.sketch is None else one.sketch.astype("<f4").tobytes() for one in rows]
    num = len(rows)
    return pl.DataFrame(
        {
            "summary": pl.Series(np.arange(num), dtype=pl.Int32),
            "dtype": pl.Series([one.dtype for one in rows], dtype=pl.String),
            "shape": pl.Series([list(one.shape) for one in rows], dtype=pl.List(pl.Int64)),
            "device": pl.Series(["merged"] * num, dtype=pl.String),
            "placement": pl.Series([None] * num, dtype=pl.String),
            "numel": pl.Series([one.numel for one in rows], dtype=pl.Int64),
            **{
                name: pl.Series([getattr(one, name) for one in rows], dtype=kind)
                for name, kind in kinds.items()
            },
            "digest": pl.Series([one.digest for one in rows], dtype=pl.UInt64),
            "crc32": pl.Series([None] * num, dtype=pl.UInt32),
            "sketch": pl.Series(sketches, dtype=pl.Binary),
            "chunk": pl.Series([at if kept else None for at, kept in enumerate(stored)], dtype=pl.Int32),
            "tensor": pl.Series(["merged" if kept else None for kept in stored], dtype=pl.String),
        }
    )
