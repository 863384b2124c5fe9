"""Comparing across layouts: how many tensors of every layout merge, and how long a large comparison takes.

Two figures. (1) Every layout that the trainer's tests hold is trained for a step in float64 and compared with
one process: the share of records that both sides hold which merge to the one-process tensor within 1e-10, and
the largest relative difference. (2) A trace of 8 ranks (dp 2, pp 1, tp 4) with 5,000 module calls each,
statistics only, is compared with one process's.

    python benchmarks/layouts.py [--only "tp2 sp,z1"] [--no-layouts] [-o benchmarks/results/layouts.json]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import polars as pl
from results import machine

from trueup.comparing.run import compare
from trueup.numerics._native import summarise_array
from trueup.numerics.summary import (
    HAS_DIGEST,
    HAS_SKETCH,
    HAS_STATISTICS,
    SUMMARY_DTYPE,
)
from trueup.store import RunWriter, StepColumns
from trueup.types.layout import layout_from_plain
from trueup.types.placement import Shard, place

WITHIN = 1e-10
CALLS, RANKS, BAR_SECONDS = 5000, 8, 15.0
MESH = {"dp": 2, "tp": 4}
HIDDEN, TOKENS = 64, 16
LAYOUT: dict[str, Any] = {
    "version": 1,
    "mesh": MESH,
    "batch": [],
    "parameters": [{"name": "*.up.weight", "tp": "shard(0)"}],
    "tensors": [
        {"name": "*.up", "slot": "output.0", "tp": "shard(-1)", "dp": "shard(0)"},
        {"name": "*", "tp": "invariant", "dp": "shard(0)"},
    ],
}


def layouts_measured(only: set[str] | None) -> dict[str, dict[str, Any]]:
    """Share of records that merge, of every layout of the trainer's tests."""
    from tests.merging.runs import traced
    from tests.trainer.layouts import configuration
    from tests.trainer.test_layouts import EIGHT, FOUR, SAME_BITS, TWO
    from tests.trainer.worlds import worlds_closed

    sizes = ((TWO, 2), (SAME_BITS, 2), (FOUR, 4), (EIGHT, 8))
    found: dict[str, dict[str, Any]] = {}
    with worlds_closed(), tempfile.TemporaryDirectory() as folder:
        for layouts, size in sizes:
            for name, sections in layouts.items():
                if only is not None and name not in only:
                    continue
                plain = configuration(**sections, dataset={"micro_batch_num": max(2, size)})
                alone = {key: one for key, one in plain.items() if key != "parallel_config"}
                root = Path(folder) / name.replace(" ", "_")
                many = traced(plain, size, root / "many", task="tensor")
                one = traced(alone, 1, root / "one", task="tensor")
                found[name] = {"processes": size, **_merged(many, one)}
                print(f"{name:28} {found[name]}", flush=True)
    return found


def _merged(many: Path, one: Path) -> dict[str, Any]:
    comparison = compare(many, one)
    frame = comparison.frame().with_columns(pl.col("status").cast(pl.String))
    both = frame.filter(pl.col("status") != "unmatched")
    good = both.filter((pl.col("rel_l2") <= WITHIN) | (pl.col("status") == "equal"))
    tiny = both.filter((pl.col("rel_l2") > WITHIN) & (pl.col("target_l2_norm") < 1e-12))
    merged = good.height + tiny.height
    return {
        "outcome": comparison.summary["verdict"]["outcome"],
        "records": both.height,
        "merged": merged,
        "share": round(merged / max(both.height, 1), 6),
        "unmatched": frame.height - both.height,
        "largest_rel_l2": good.filter(pl.col("rel_l2").is_finite())["rel_l2"].max(),
    }


def scale_measured(folder: Path) -> dict[str, Any]:
    """Seconds and memory of a comparison of 8 ranks with one."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((2 * TOKENS, HIDDEN)).astype(np.float32) for _ in range(64)]
    weight = rng.standard_normal((HIDDEN, HIDDEN)).astype(np.float32)
    for rank in range(RANKS):
        _write(folder / "many", rank, values, weight, LAYOUT)
    _write(folder / "one", 0, [one + 1e-7 for one in values], weight, None)
    began, worked = time.perf_counter(), time.process_time()
    comparison = compare(folder / "many", folder / "one")
    seconds = time.perf_counter() - began
    return {
        "ranks": RANKS,
        "calls": CALLS,
        "records": comparison.summary["counts"]["compared"],
        "outcome": comparison.summary["verdict"]["outcome"],
        "seconds": round(seconds, 2),
        "cpu_seconds": round(time.process_time() - worked, 2),
        "bar_seconds": BAR_SECONDS,
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _write(root: Path, rank: int, values: list[Any], weight: Any, plain: dict[str, Any] | None) -> None:
    """One rank's step: modules ``layers.N.up`` with an input, an output and both gradients."""
    layout = layout_from_plain(plain or {"version": 1, "mesh": {"rank": 1}})
    coordinate = layout.coordinate(rank)
    writer = RunWriter(root, rank=rank)
    writer.begin_run({"world_size": layout.size, "layout": plain, "level": "L0"} if rank == 0 else None)
    columns, summaries = StepColumns(), []
    calls: dict[str, list[Any]] = {name: [] for name in columns.calls}
    records: dict[str, list[Any]] = {name: [] for name in columns.records}

    def record(call: int, kind: str, name: str, phase: str, slot: str, whole: Any) -> None:
        of = layout.of_parameter if kind == "parameter" else layout.of_tensor
        placements = {axis: one for axis, one in of(name, phase, slot).placements.items() if axis != "batch"}
        shape = list(whole.shape)
        for axis, one in placements.items():
            if isinstance(one, Shard):
                shape[one.dim] //= layout.mesh[axis]
        found = place(shape, placements, layout.mesh, coordinate)
        assert found is not None
        where = found[1]
        offset = [segments[0][0] for segments in where]
        part = whole[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]
        want = HAS_STATISTICS | HAS_DIGEST | HAS_SKETCH
        columns.summary_dtype.append("float32")
        columns.summary_shape.append(tuple(shape))
        columns.summary_device.append("cpu")
        told = json.dumps({"whole": list(whole.shape), "where": where}) if plain else None
        columns.summary_placement.append(told)
        row = (call, phase, slot, 0, len(summaries), True, None)
        summaries.append(summarise_array(part, want, None, whole.shape, offset))
        for column, value in zip(records, row, strict=True):
            records[column].append(value)

    def call(kind: str, name: str, ordinal: int) -> int:
        number = len(calls["name"])
        row = (None, kind, name, "Linear", ordinal, 0, "train", False, None, None, ordinal)
        for column, value in zip(calls, row, strict=True):
            calls[column].append(value)
        return number

    record(
        call("parameter", "layers.0.up.weight", 0),
        "parameter",
        "layers.0.up.weight",
        "param",
        "value",
        weight,
    )
    for number in range(CALLS - 1):
        name = f"layers.{number}.up"
        at = call("module", name, 0)
        for phase, slot, shift in (
            ("forward", "input.0", 0),
            ("forward", "output.0", 1),
            ("backward", "output.0", 2),
        ):
            record(at, "module", name, phase, slot, values[(number + shift) % len(values)])
    columns.calls, columns.records = dict(calls), dict(records)
    columns.summaries = np.array(summaries, SUMMARY_DTYPE)
    writer.finish_step(0, columns)
    writer.write_rank({"rank": rank, "roots": [], "parameters": []})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", help="names of layouts, with commas")
    parser.add_argument("--no-layouts", action="store_true", help="only the large comparison")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scale = scale_measured(Path(folder))
    print(scale, flush=True)
    only = None if arguments.only is None else set(arguments.only.split(","))
    layouts = {} if arguments.no_layouts else layouts_measured(only)
    result = {"machine": machine(), "scale": scale, "layouts": layouts}
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    missed = [name for name, one in layouts.items() if one["share"] < 1.0]
    raise SystemExit(f"not all merged: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
