"""What capture costs a training step, in time and in bytes, next to msprobe.

Two processes train the same model, one of them captured; taking alternate steps. A ratio is the seconds of
so many captured steps, until everything is on disk, over those of the same steps with capture off.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from processes import msprobe_bin
from results import FOLDER, Results, Row, heading, line, parser
from turns import in_turn, total

SMALL, LARGE = {"hidden": 256, "seq": 128}, {"hidden": 512, "seq": 256}
WARM_UP = 3
STATISTICS = {"digest": False, "sketch": False}
METHOD = (
    "4-layer GPT, vocabulary 1000, batch 4, AdamW, one thread. Ratio of seconds with capture on to "
    "off, wall and CPU (the process and its children), over the captured steps until the trace is on "
    "disk; warm-up steps and imports are not counted. Two processes, captured and not, take steps "
    "alternately, so that other load slows both; the median over the runs is given, with "
    "the least and most of the wall ratios. msprobe is run once. A bar is met when the wall and the CPU "
    "ratio both are."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to capture, with its counterpart in msprobe."""

    what: str
    size: dict[str, int]
    options: dict[str, Any]
    msprobe: dict[str, Any] | None = None
    max_ratio: float | None = None
    max_bytes: float | None = None


CASES = [
    Case(
        what="L0 statistics",
        size=SMALL,
        options={"level": "L0", **STATISTICS},
        msprobe={"level": "L0"},
        max_ratio=1.15,
    ),
    Case(
        what="L0 + digest + sketch (the default)",
        size=SMALL,
        options={"level": "L0"},
        msprobe={"level": "L0", "summary_mode": "md5"},
    ),
    Case(
        what="mix statistics",
        size=SMALL,
        options={"level": "mix", **STATISTICS},
        msprobe={"level": "mix"},
        max_ratio=1.5,
        max_bytes=250e3,
    ),
    Case(
        what="mix + digest + sketch",
        size=SMALL,
        options={"level": "mix"},
        msprobe={"level": "mix", "summary_mode": "md5"},
        max_ratio=2.0,
        max_bytes=850e3,
    ),
    Case(
        what="mix tensor",
        size=SMALL,
        options={"level": "mix", "task": "tensor"},
        msprobe={"level": "mix", "task": "tensor"},
        max_ratio=5.0,
        max_bytes=400e6,
    ),
    Case(
        what="L0 statistics",
        size=LARGE,
        options={"level": "L0", **STATISTICS},
        msprobe={"level": "L0"},
        max_ratio=1.05,
    ),
    Case(
        what="mix statistics",
        size=LARGE,
        options={"level": "mix", **STATISTICS},
        msprobe={"level": "mix"},
        max_ratio=1.2,
    ),
]


def cost(
    python: Path,
    tool: str,
    case: Case,
    options: dict[str, Any],
    *,
    steps: int,
    repeats: int,
    worker: str = "train_steps.py",
) -> dict[str, Any]:
    """Measure off and on in turn; returns ratios, of every run and their median, and bytes a step."""
    how = {**case.size, "steps": steps, "warmup": WARM_UP, "options": options}
    runs = [in_turn(python, worker, tool, **how) for _ in range(repeats)]
    ratios = {
        clock: [total([*run["on"], run["closing"]], clock) / total(run["off"], clock) for run in runs]
        for clock in ("wall", "cpu")
    }
    return {
        "ratio": {clock: median(of_runs) for clock, of_runs in ratios.items()},
        "ratios": ratios,
        "bytes_a_step": median(run["bytes_a_step"] for run in runs),
        "runs": runs,
    }


def said(measured: dict[str, Any] | None, *, digits: int = 2) -> str:
    """``wall / cpu`` of a measurement."""
    if measured is None:
        return ""
    return " / ".join(f"{measured['ratio'][clock]:.{digits}f}" for clock in ("wall", "cpu"))


def spread(measured: dict[str, Any]) -> str:
    """Least and most of the runs' wall ratios."""
    return f"runs {min(measured['ratios']['wall']):.2f} to {max(measured['ratios']['wall']):.2f}"


def bytes_said(number: float | None) -> str:
    """A size in the unit that suits it."""
    if number is None:
        return ""
    return f"{number / 1e6:.1f} MB" if number >= 1e6 else f"{number / 1e3:.0f} KB"


def name_of(case: Case) -> str:
    """How the results call a case."""
    return f"h{case.size['hidden']} seq{case.size['seq']}: {case.what}"


def measured(case: Case, *, steps: int, repeats: int) -> dict[str, Any]:
    """A case under trueup, and under msprobe where it has a counterpart and is set up."""
    python, home = Path(sys.executable), msprobe_bin()
    found = {"trueup": cost(python, "trueup", case, case.options, steps=steps, repeats=repeats)}
    if home is not None and case.msprobe is not None:
        python = home / "python"
        found["msprobe"] = cost(python, "msprobe", case, case.msprobe, steps=steps, repeats=1)
    return found


def time_row(case: Case, found: dict[str, Any]) -> Row:
    """What a case costs."""
    ours = found["trueup"]
    return Row(
        what=f"step time on / off (wall / CPU), {name_of(case)}",
        bar="" if case.max_ratio is None else f"<= {case.max_ratio:g}",
        trueup=said(ours),
        msprobe=said(found.get("msprobe")),
        met=None if case.max_ratio is None else max(ours["ratio"].values()) <= case.max_ratio,
        note=spread(ours),
    )


def size_row(case: Case, found: dict[str, Any]) -> Row:
    """What it writes."""
    ours, theirs = found["trueup"], found.get("msprobe")
    assert case.max_bytes is not None
    return Row(
        what=f"bytes a step, {name_of(case)}",
        bar=f"<= {bytes_said(case.max_bytes)}",
        trueup=bytes_said(ours["bytes_a_step"]),
        msprobe=bytes_said(theirs and theirs["bytes_a_step"]),
        met=ours["bytes_a_step"] <= case.max_bytes,
    )


def main() -> None:
    """Measure every case and write ``results/step_time.json``."""
    options = parser(__doc__)
    options.add_argument("--only", help="only cases with this in their name; the others stay as they are")
    options.add_argument("--repeats", type=int, default=5, help="pairs of runs a case; the median is given")
    given = options.parse_args()
    steps, repeats = (3, 1) if given.quick else (20, given.repeats)
    settings = {"steps": steps, "warm_up_steps": WARM_UP, "repeats": repeats, "threads": 1}
    results = Results(name="step_time", title="Cost of a captured step", method=METHOD, settings=settings)
    before = FOLDER / "step_time.json"
    if given.only and not given.quick and before.exists():
        results.raw = json.loads(before.read_text())["raw"]
    print(heading())
    for case in CASES:
        name = name_of(case)
        if given.only is None or given.only in name:
            results.raw[name] = measured(case, steps=steps, repeats=repeats)
            print(line(time_row(case, results.raw[name])), flush=True)
    known = [(case, results.raw[name_of(case)]) for case in CASES if name_of(case) in results.raw]
    results.rows = [time_row(case, found) for case, found in known]
    results.rows += [size_row(case, found) for case, found in known if case.max_bytes is not None]
    results.save(quick=given.quick)


if __name__ == "__main__":
    main()
