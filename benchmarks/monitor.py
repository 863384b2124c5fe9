"""What watching a run costs a training step, and how much it writes.

Two processes train the same model, one of them watched; taking alternate steps. A ratio is the seconds of
ten steps of the one over those of the ten steps of the other that lay between them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from processes import msprobe_bin
from results import Results, Row, heading, parser
from step_time import LARGE, SMALL, bytes_said
from turns import in_turn, total

METHOD = (
    "4-layer GPT, vocabulary 1000, batch 4, AdamW, one thread; every step watched, all rules on. Two "
    "processes, watched and not, take steps alternately, so that other load "
    "slows both; a ratio is that of ten steps to the ten between them, the median over the tens is "
    "given, and of CPU seconds the least and most. The bar is on CPU seconds; wall seconds are beside "
    "them. Warm-up steps, imports and the end of the run are not counted. msprobe: its TrainerMon, "
    "gradients and weights, minimum, maximum, mean and norm, at every step."
)
TEN = 10
"""steps of a ratio: one of them measures Adam's moments, and with ``every: 10`` anything at all"""
WARM_UP = 3
_NO_STEP: list[list[int]] = []
"""none is captured in full"""
_GRADIENTS = {"updates": False, "moments_every": 0}
_ACTIVATIONS = {"modules": ["*.mlp", "*.attn"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to watch; ``compared``: msprobe can do it too."""

    what: str
    size: dict[str, int]
    options: dict[str, Any]
    max_ratio: float | None = None
    compared: bool = False


CASES = [
    Case(what="gradients and weights", size=LARGE, options=_GRADIENTS, compared=True, max_ratio=1.03),
    Case(what="and updates, every 10th step moments (the default)", size=LARGE, options={}, max_ratio=1.03),
    Case(what="and updates and moments", size=LARGE, options={"moments_every": 1}),
    Case(what="and outputs of attention and mlp", size=LARGE, options=_ACTIVATIONS),
    Case(what="the default, every 10th step", size=LARGE, options={"every": 10}),
    Case(what="gradients and weights", size=SMALL, options=_GRADIENTS, compared=True),
    Case(what="and updates, every 10th step moments (the default)", size=SMALL, options={}),
]


def watched(python: Path, tool: str, case: Case, options: dict[str, Any], tens: int) -> dict[str, Any]:
    """Steps with and without in turn; adds the ratio of every ten."""
    spec = {**case.size, "warmup": WARM_UP, "options": options}
    taken = in_turn(python, "train_steps.py", tool, steps=tens * TEN, **spec)
    ratios = {
        clock: [
            total(taken["on"][at : at + TEN], clock) / total(taken["off"][at : at + TEN], clock)
            for at in range(0, tens * TEN, TEN)
        ]
        for clock in ("cpu", "wall")
    }
    return {"ratios": ratios, **taken}


def said(measured: dict[str, Any] | None) -> str:
    """``CPU / wall`` of a measurement."""
    if measured is None:
        return ""
    return " / ".join(f"{median(measured['ratios'][clock]):.3f}" for clock in ("cpu", "wall"))


def main() -> None:
    """Measure every case and write ``results/monitor.json``."""
    options = parser(__doc__)
    options.add_argument("--only", help="only cases with this in their name")
    options.add_argument("--tens", type=int, default=5, help="times ten steps of either kind a case")
    given = options.parse_args()
    tens = 1 if given.quick else given.tens
    settings = {"steps": tens * TEN, "warm_up_steps": WARM_UP, "threads": 1}
    results = Results(name="monitor", title="Cost of a watched step", method=METHOD, settings=settings)
    home = msprobe_bin()
    print(heading())
    for case in CASES:
        name = f"h{case.size['hidden']} seq{case.size['seq']}: {case.what}"
        if given.only and given.only not in name:
            continue
        how: dict[str, Any] = {"steps": _NO_STEP, "monitor": case.options}
        ours = watched(Path(sys.executable), "trueup", case, how, tens)
        theirs = None
        if home is not None and case.compared:
            theirs = watched(home / "python", "msprobe_monitor", case, {}, max(1, tens // 2))
        results.raw[name] = {"trueup": ours, "msprobe": theirs}
        cpu = ours["ratios"]["cpu"]
        results.add(
            Row(
                what=f"step time on / off (CPU / wall), {name}",
                bar="" if case.max_ratio is None else f"<= {case.max_ratio:g}",
                trueup=said(ours),
                msprobe=said(theirs),
                met=None if case.max_ratio is None else median(cpu) <= case.max_ratio,
                note=f"CPU {min(cpu):.3f} to {max(cpu):.3f}; {bytes_said(ours['bytes_a_step'])} a step",
            )
        )
    results.save(quick=given.quick or given.only is not None)


if __name__ == "__main__":
    main()
