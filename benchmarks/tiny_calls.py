"""What one captured tiny API call adds to a step, next to msprobe.

The smallest call there is, ``torch.add`` of two tensors of four elements, shows the price of the
bookkeeping alone, and many of them in one step whether that price stays the same.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from processes import msprobe_bin, work
from results import Results, Row, heading, parser

BARS = {False: 30.0, True: 60.0}
SIZES = {500: 20, 2000: 10, 8000: 5, 50_000: 3}
"""calls a step -> counted steps"""
FLAT = 1.5
OURS = {
    "": {"level": "L1", "digest": False, "sketch": False},
    ", with digest and sketch": {"level": "L1"},
}
METHOD = (
    "Seconds of a step with capture on less those with capture off, over the number of calls; stack "
    "key on, writing the step included. Wall and CPU are measured, the larger is given. On and off "
    "alternate, each in its own process; median of the repeats. Flat: a call of a larger step costs "
    f"no more than {FLAT:g} times one of a smaller step, from 500 calls up, of each its quietest repeat: "
    "what else the machine does makes the same process half as slow again for seconds at a time. (Smaller "
    "steps cost more a call: what a step costs once, its files, is shared by fewer.)"
)


def added(
    python: Path, tool: str, options: dict[str, Any], *, calls: int, backward: bool, steps: int, repeats: int
) -> dict[str, Any]:
    """Microseconds a captured call adds."""
    found = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            common = {"calls": calls, "backward": backward, "steps": steps, "warmup": 2}
            common |= {"output": f"{folder}/run", "options": options}
            off = work(python, "tiny_calls.py", tool=None, **common)
            on = work(python, "tiny_calls.py", tool=tool, **common)
        found.append({clock: (on[clock] - off[clock]) / steps / calls * 1e6 for clock in on})
    return {
        "microseconds": max(median(run[clock] for run in found) for clock in found[0]),
        "quietest": min(max(run.values()) for run in found),
        "runs": found,
    }


def growth(costs: list[float]) -> float:
    """The most that a later cost is of an earlier one, by ascending size."""
    pairs = [(earlier, later) for at, later in enumerate(costs) for earlier in costs[:at]]
    return max(later / max(earlier, 1e-9) for earlier, later in pairs)


def main() -> None:
    """Measure every size and write ``results/tiny_calls.json``."""
    flags = parser(__doc__)
    flags.add_argument("--repeats", type=int, default=5, help="pairs of runs a size; the median is given")
    given = flags.parse_args()
    sizes = {500: 3, 2000: 2} if given.quick else SIZES
    repeats = 1 if given.quick else given.repeats
    settings = {"counted_steps": sizes, "warm_up_steps": 2, "repeats": repeats, "threads": 1}
    results = Results(name="tiny_calls", title="Cost of a captured call", method=METHOD, settings=settings)
    print(heading())
    for backward, bar in BARS.items():
        direction = "forward and backward" if backward else "forward"
        for addition, options in OURS.items():
            quietest: list[float] = []
            for calls, steps in sizes.items():
                name = f"added a tiny call, {direction}, {calls} calls a step{addition}"
                how = {"calls": calls, "backward": backward, "steps": steps, "repeats": repeats}
                ours = added(Path(sys.executable), "trueup", options, **how)
                theirs, home = None, msprobe_bin()
                if home is not None and calls <= 8000 and not addition:
                    theirs = added(
                        home / "python", "msprobe", {"level": "L1"}, **{**how, "repeats": 1, "steps": 2}
                    )
                cost = ours["microseconds"]
                quietest.append(ours["quietest"])
                results.raw[name] = {"trueup": ours, "msprobe": theirs}
                row = Row(
                    what=name,
                    bar=f"<= {bar:g} us",
                    trueup=f"{cost:.1f} us",
                    msprobe="" if theirs is None else f"{theirs['microseconds']:.0f} us",
                    met=cost <= bar,
                )
                results.add(row)
            grown = growth(quietest)
            what = f"a call of a larger step over one of a smaller, {direction}{addition}"
            results.add(Row(what=what, bar=f"<= {FLAT:g}", trueup=f"{grown:.2f}", met=grown <= FLAT))
    results.save(quick=given.quick)


if __name__ == "__main__":
    main()
