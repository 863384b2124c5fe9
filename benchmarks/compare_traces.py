"""Comparing two traces of 56,000 calls, from process start, next to msprobe.

The traces are synthetic (``compare_scale.py`` says of what): every record differs by rounding or more,
and some calls of one side are spelled otherwise. msprobe gets the same two runs, exported to its own
format.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from compare_scale import write_trace
from processes import TRUEUP, Measured, measure, msprobe_bin
from results import Results, Row, heading, parser

CALLS = 56_000
MAX_MIB = 600
METHOD = (
    "Two synthetic traces of one step, level mix, forward and backward; wall seconds from process "
    "start to process end, and the largest memory of the process and its children at one moment. "
    "msprobe compares the same runs through `trueup export --format msprobe`, because its own dump of "
    "such a step takes minutes; its three outputs are csv, the graph database of its visualizer, and "
    "xlsx."
)
FORMATS = {
    "no report": (["--no-html"], 5.0, ["compare"], []),
    "html": (["--html"], 10.0, ["graph_visualize"], []),
    "xlsx": (["--no-html", "--xlsx"], 25.0, ["compare"], ["--xlsx"]),
}
"""what trueup writes -> its options, bar in seconds, msprobe's verb, msprobe's options"""


def main() -> None:
    """Compare the traces in every way and write ``results/compare_traces.json``."""
    given = parser(__doc__).parse_args()
    calls, repeats = (3000, 1) if given.quick else (CALLS, 3)
    settings = {"calls": calls, "repeats": repeats, "msprobe_repeats": 1}
    results = Results(name="compare_traces", title="Comparing large traces", method=METHOD, settings=settings)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for side in ("reference", "target"):
            write_trace(root / side, calls, perturb=1e-7 * (side == "target"), respelled=side == "target")
            if msprobe_bin() is not None:
                measure([*TRUEUP, "export", str(root / side), str(root / f"msprobe_{side}"), "--quiet"])
        print(heading())
        for name, (options, bar, verb, msprobe_options) in FORMATS.items():
            ours = [_trueup(root, options) for _ in range(repeats)]
            theirs = _msprobe(root, verb, msprobe_options)
            best = sorted(ours, key=lambda run: run.wall_seconds)[repeats // 2]
            results.raw[name] = {
                "trueup": [_plain(run) for run in ours],
                "msprobe": theirs and _plain(theirs),
            }
            for row in _rows(
                f"compare 2 x {calls:,} calls, {name}", best, max(r.peak_rss_mib for r in ours), theirs, bar
            ):
                results.add(row)
    results.save(quick=given.quick)


def _rows(what: str, ours: Measured, peak_mib: float, theirs: Measured | None, bar: float) -> list[Row]:
    seconds = Row(
        what=what,
        bar=f"<= {bar:g} s",
        trueup=f"{ours.wall_seconds:.1f} s",
        msprobe="" if theirs is None else f"{theirs.wall_seconds:.0f} s",
        met=ours.wall_seconds <= bar,
    )
    memory = Row(
        what=f"{what}: peak memory",
        bar=f"<= {MAX_MIB} MB",
        trueup=f"{peak_mib * 1.048576:.0f} MB",
        msprobe="" if theirs is None else f"{theirs.peak_rss_mib * 1.048576:.0f} MB",
        met=peak_mib * 1.048576 <= MAX_MIB,
    )
    return [seconds, memory]


def _trueup(root: Path, options: list[str]) -> Measured:
    out = root / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [*TRUEUP, "compare", str(root / "target"), str(root / "reference"), "-o", str(out), *options]
    return measure([*command, "--quiet"], allowed=(0, 1, 2))


def _msprobe(root: Path, verb: list[str], options: list[str]) -> Measured | None:
    home, out = msprobe_bin(), root / "msprobe_out"
    if home is None:
        return None
    shutil.rmtree(out, ignore_errors=True)
    sides = ["-tp", str(root / "msprobe_target" / "step0"), "-gp", str(root / "msprobe_reference" / "step0")]
    return measure([str(home / "msprobe"), *verb, *sides, "-o", str(out), *options])


def _plain(run: Measured) -> dict[str, float]:
    return {
        "wall_seconds": run.wall_seconds,
        "cpu_seconds": run.cpu_seconds,
        "peak_rss_mib": run.peak_rss_mib,
    }


if __name__ == "__main__":
    main()
