"""What capture costs a training step of MindSpore, in time and in bytes.

As ``step_time.py``, with the same sizes of model, in the environment that ``make mindspore`` makes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from processes import ROOT
from results import Results, Row, heading, parser, version_in
from step_time import SMALL, STATISTICS, WARM_UP, Case, bytes_said, cost, said, spread

METHOD = (
    "4-layer GPT in MindSpore's PyNative mode, vocabulary 1000, batch 4, AdamW, operations run one by one, "
    "the faster way on a CPU. Ratio of seconds with capture on to off, wall and CPU, until the trace is on "
    "disk; warm-up steps and imports are not counted. Two processes, captured and not, take one step each in "
    "turn; the median over the runs is given, with the least and most of the wall ratios. msprobe 26.2.0 "
    "runs on this MindSpore only when patched: its figures were read once, patched, on this machine."
)
CASES = [
    Case(what="L0 statistics", size=SMALL, options={"level": "L0", **STATISTICS}, max_ratio=1.3),
    Case(what="mix statistics", size=SMALL, options={"level": "mix", **STATISTICS}, max_ratio=4.0),
    Case(what="mix + digest + sketch", size=SMALL, options={"level": "mix"}),
]
PATCHED_MSPROBE = {"L0 statistics": "5", "mix statistics": "30"}


def interpreter() -> Path:
    """A Python that has MindSpore: of TRUEUP_MINDSPORE_VENV, or of the project's own environment for it."""
    return Path(os.environ.get("TRUEUP_MINDSPORE_VENV", ROOT / ".venv-mindspore")) / "bin" / "python"


def main() -> None:
    """Measure every case and write ``results/mindspore_step_time.json``."""
    given = parser(__doc__).parse_args()
    if not interpreter().exists():
        sys.exit("there is no environment with MindSpore; try: make mindspore")
    steps, repeats = (3, 1) if given.quick else (10, 3)
    settings: dict[str, Any] = {"steps": steps, "warm_up_steps": WARM_UP, "repeats": repeats, "threads": 1}
    settings["MindSpore"] = version_in(interpreter(), "mindspore")
    results = Results(
        name="mindspore_step_time",
        title="Cost of a captured step, MindSpore",
        method=METHOD,
        settings=settings,
    )
    print(heading())
    for case in CASES:
        options = {"framework": "mindspore", **case.options}
        ours = cost(
            *(interpreter(), "trueup", case, options),
            steps=steps,
            repeats=repeats,
            worker="mindspore_steps.py",
        )
        results.raw[case.what] = ours
        results.add(
            Row(
                what=f"step time on / off (wall / CPU), MindSpore h{case.size['hidden']}: {case.what}",
                bar="" if case.max_ratio is None else f"<= {case.max_ratio:g}",
                trueup=said(ours),
                msprobe=PATCHED_MSPROBE.get(case.what, ""),
                met=None if case.max_ratio is None else max(ours["ratio"].values()) <= case.max_ratio,
                note=f"{spread(ours)}; {bytes_said(ours['bytes_a_step'])} a step",
            )
        )
    results.save(quick=given.quick)


if __name__ == "__main__":
    main()
