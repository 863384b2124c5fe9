"""Builds small dumps by hand, and looks into tables."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import polars as pl

from trueup.store import StepTables


def tensor(**changed: Any) -> dict[str, Any]:
    """One tensor as msprobe describes it."""
    leaf = {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3],
        "Max": 1.5, "Min": -0.5, "Mean": 0.25, "Norm": 2.0, "requires_grad": True,
    }  # fmt: skip
    return leaf | changed


def module_entry(output: Any = None, **inputs: Any) -> dict[str, Any]:
    """A forward entry of a module."""
    return {
        "input_args": [tensor()],
        "input_kwargs": inputs,
        "output": [output or tensor()],
        "parameters": {},
    }


def write_dump(folder: Path, data: Any, *, construct: Any = None, stack: Any = None, **head: Any) -> Path:
    """Write one rank's folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None} | head
    (folder / "dump.json").write_text(json.dumps(content | {"data": data}, indent=1))
    if construct is not None:
        (folder / "construct.json").write_text(json.dumps(construct))
    if stack is not None:
        (folder / "stack.json").write_text(json.dumps(stack))
    return folder


def rows(tables: StepTables, name: str, phase: str = "forward", **calls: Any) -> list[dict[str, Any]]:
    """Records of the calls of that name, with what their summaries hold."""
    chosen = tables.calls.cast({"name": pl.String}).filter(pl.col("name") == name)
    for column, value in calls.items():
        chosen = chosen.filter(pl.col(column) == value)
    records = tables.records.join(chosen.select("call", "name", "global_ordinal"), on="call", how="inner")
    records = records.cast({"phase": pl.String, "slot": pl.String}).filter(pl.col("phase") == phase)
    return records.join(tables.summaries, on="summary", how="left", maintain_order="left").to_dicts()


def call(tables: StepTables, name: str, **wanted: Any) -> dict[str, Any]:
    """The one call of that name."""
    chosen = tables.calls.cast({"name": pl.String}).filter(pl.col("name") == name)
    for column, value in wanted.items():
        chosen = chosen.filter(pl.col(column) == value)
    (found,) = chosen.to_dicts()
    return found


def same(one: Any, other: Any) -> bool:
    """Equal in keys, their order, numbers and types; NaN equals NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other
