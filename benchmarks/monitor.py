"""What watching a run costs a training step, and how much it writes.

A ratio is the seconds of so many watched steps over those of the same steps unwatched; on and off run in
turn, each in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from processes import msprobe_bin
from results import Results, Row, heading, parser
from step_time import LARGE, SMALL, Case, bytes_said, pairs, said

METHOD = (
    "4-layer GPT, vocabulary 1000, batch 4, AdamW, one thread; every step watched, all rules on. Ratio of "
    "seconds with the monitor on to off, wall and CPU; warm-up steps and imports are not counted. On and off "
    "alternate, each run in its own process; the median over the repeats is given. msprobe: its TrainerMon, "
    "gradients and weights, minimum, maximum, mean and norm, at every step."
)
_NO_STEP: list[list[int]] = []
"""none is captured in full"""
_GRADIENTS = {"updates": False, "moments_every": 0}
_ACTIVATIONS = {"modules": ["*.mlp", "*.attn"]}
CASES = [
    Case(what="gradients and weights", size=SMALL, options=_GRADIENTS, msprobe={}),
    Case(what="and updates, every 10th step moments (the default)", size=SMALL, options={}),
    Case(what="gradients and weights", size=LARGE, options=_GRADIENTS, msprobe={}, max_ratio=1.03),
    Case(what="and updates, every 10th step moments (the default)", size=LARGE, options={}, max_ratio=1.03),
    Case(what="and updates and moments", size=LARGE, options={"moments_every": 1}),
    Case(what="and outputs of attention and mlp", size=LARGE, options=_ACTIVATIONS),
    Case(what="the default, every 10th step", size=LARGE, options={"every": 10}),
]


def main() -> None:
    """Measure every case and write ``results/monitor.json``."""
    options = parser(__doc__)
    options.add_argument("--only", help="only cases with this in their name")
    options.add_argument("--repeats", type=int, default=5, help="pairs of runs a case; the median is given")
    given = options.parse_args()
    steps, repeats = (3, 1) if given.quick else (20, given.repeats)
    settings = {"steps": steps, "warm_up_steps": 3, "repeats": repeats, "threads": 1}
    results = Results(name="monitor", title="Cost of a watched step", method=METHOD, settings=settings)
    print(heading())
    for case in CASES:
        name = f"h{case.size['hidden']} seq{case.size['seq']}: {case.what}"
        if given.only and given.only not in name:
            continue
        watched: dict[str, Any] = {"steps": _NO_STEP, "monitor": case.options}
        ours = pairs(Path(sys.executable), "trueup", case, watched, steps=steps, repeats=repeats)
        theirs, home = None, msprobe_bin()
        if home is not None and case.msprobe is not None:
            theirs = pairs(home / "python", "msprobe_monitor", case, {}, steps=steps, repeats=min(repeats, 3))
        results.raw[name] = {"trueup": ours, "msprobe": theirs}
        results.add(
            Row(
                what=f"step time on / off (wall / CPU), {name}",
                bar="" if case.max_ratio is None else f"<= {case.max_ratio:g}",
                trueup=said(ours, digits=3),
                msprobe=said(theirs, digits=3),
                met=None if case.max_ratio is None else max(ours["ratio"].values()) <= case.max_ratio,
                note=f"{bytes_said(ours['bytes_a_step'])} a step",
            )
        )
    results.save(quick=given.quick or given.only is not None)


if __name__ == "__main__":
    main()
