"""Every layout of the reference trainer against one process: ten steps, and one captured step compared.

In float64, against one process with the same weights and batch: the largest difference of losses, gradients,
norms and weights over ten steps; then a step of each is captured and compared: the share of records that both
sides hold which merge to the one-process tensor within 1e-10. Last, a trace of 8 ranks (dp 2, tp 4) with
5,000 module calls each, statistics only, is compared with one process's.

    python benchmarks/layouts.py [--only "tp2 sp,z1"]    (the others stay as they are in the results)
"""

from __future__ import annotations

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
from results import FOLDER, Results, Row, heading, line, parser

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

WITHIN, STEPS = 1e-10, 10
QUICK, SCALE = ("dp2", "tp2 sp"), "scale"
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


def layouts_of_tests() -> dict[str, tuple[int, dict[str, Any]]]:
    """Every layout that the trainer's tests hold: its processes, its sections."""
    from tests.trainer.test_layouts import EIGHT, FOUR, SAME_BITS, TWO

    sizes = ((TWO, 2), (SAME_BITS, 2), (FOUR, 4), (EIGHT, 8))
    return {name: (size, sections) for layouts, size in sizes for name, sections in layouts.items()}


def layout_measured(size: int, sections: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Differences over ten steps, and the share of a captured step's records that merge."""
    from tests.merging.runs import traced
    from tests.trainer.layouts import cut, differences, reference, run

    plain = cut(sections, size)
    alone = {key: one for key, one in plain.items() if key != "parallel_config"}
    far = differences(run(plain, size, STEPS), reference(plain, STEPS))
    many = traced(plain, size, folder / "many", task="tensor")
    one = traced(alone, 1, folder / "one", task="tensor")
    return {"processes": size, "differences": far, **_merged(many, one)}


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
        told = json.dumps({"whole": list(whole.shape), "where": where}) if plain else None
        columns.add_kind("float32", tuple(shape), placement=told)
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


def row_of(name: str, found: dict[str, Any]) -> Row:
    """A layout's line."""
    far = max(found["differences"].values())
    return Row(
        what=f"{name}, {found['processes']} processes: records that merge",
        bar="100 %",
        trueup=f"{100 * found['share']:.2f} %",
        met=found["share"] == 1.0 and far <= WITHIN,
        note=f"{found['records']} records within {found['largest_rel_l2']:.0e}; ten steps within {far:.0e}",
    )


def scale_row(found: dict[str, Any]) -> Row:
    """The line of the large comparison."""
    return Row(
        what=f"compare {found['ranks']} ranks x {found['calls']:,} calls with one process",
        bar=f"<= {BAR_SECONDS:.0f} s",
        trueup=f"{found['seconds']:.1f} s",
        met=found["seconds"] <= BAR_SECONDS,
        note=f"{found['cpu_seconds']:.1f} s of CPU, {found['peak_mib']} MiB",
    )


def main() -> None:
    """Measure, one layout after the other; what is measured is saved at once."""
    from tests.trainer.worlds import worlds_closed

    options = parser(__doc__)
    options.add_argument("--only", help="names of layouts, with commas; the others stay as they are")
    args = options.parse_args()
    results = Results(
        name="layouts",
        title="Layouts of the reference trainer against one process",
        method="Float64, the same weights and batch. Records of one step that both sides hold and that "
        "merge to the one-process tensor within 1e-10, their largest relative difference, and the largest "
        "difference of losses, gradients, norms and weights over ten steps (bar 1e-10). Last, the comparison "
        "of a large trace.",
        settings={"steps": STEPS, "within": WITHIN},
    )
    layouts = layouts_of_tests()
    chosen = list(QUICK) if args.quick else [*layouts, SCALE]
    before = FOLDER / "layouts.json"
    if args.only is not None:
        chosen = args.only.split(",")
        unknown = [name for name in chosen if name not in layouts and name != SCALE]
        if unknown:
            options.error(f"--only {unknown[0]}: one of {', '.join((*layouts, SCALE))} is wanted")
        if before.exists():
            results.raw = {k: v for k, v in json.loads(before.read_text())["raw"].items() if k not in chosen}
    print(heading())
    with worlds_closed(), tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            root = Path(folder) / name.replace(" ", "_")
            results.raw[name] = (
                scale_measured(root) if name == SCALE else layout_measured(*layouts[name], root)
            )
            _save(results, layouts, quick=args.quick)
            print(line(_row(name, results.raw[name])), flush=True)


def _save(results: Results, layouts: dict[str, Any], *, quick: bool) -> None:
    """Rows in the order of the tests, whatever was measured when."""
    results.rows = [_row(name, results.raw[name]) for name in (*layouts, SCALE) if name in results.raw]
    results.save(quick=quick)


def _row(name: str, found: dict[str, Any]) -> Row:
    return scale_row(found) if name == SCALE else row_of(name, found)


if __name__ == "__main__":
    main()
