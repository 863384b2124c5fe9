"""Tokens a second of the reference trainer on MindSpore beside a loop written by hand in MindSpore.

One process on the same model in the same run, CPU, one thread, hidden 256, 4 layers, 512 tokens a step. The
ways take turns step by step. A ratio is that of the least CPU seconds that a step took: what else the machine
does can only add to them. By hand once with the optimizer that is AdamW, and once with MindSpore's fused one,
which has no bias correction.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from mindspore_step_time import interpreter
from processes import ROOT
from results import Results, Row, heading, parser, version_in

TOKENS = 512
BARS = {"by hand": 0.97, "by hand, AdamWeightDecay": None}


def steps(rounds: int) -> dict[str, Any]:
    """What the worker found."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOG_v": "3", "PYTHONPATH": str(ROOT / "src")}
    worker = str(ROOT / "benchmarks" / "workers" / "mindspore_loops.py")
    command = [str(interpreter()), worker, "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def of_turns(seconds: dict[str, list[float]], other: str) -> float:
    """Median of the ratios of one turn."""
    return statistics.median(b / a for a, b in zip(seconds["trainer"], seconds[other], strict=True))


def main() -> None:
    """Run, compare, save."""
    args = parser(__doc__).parse_args()
    if not interpreter().exists():
        sys.exit("there is no environment with MindSpore; try: make mindspore")
    rounds = 4 if args.quick else 24
    results = Results(
        name="mindspore_throughput",
        title="The reference trainer on MindSpore beside a loop by hand",
        method="Speed of the trainer over that of a loop by hand in MindSpore's PyNative mode on the same "
        "model, the ways taking turns step by step: the loop's CPU seconds over the trainer's, each of its "
        "quietest step. The medians of the turns, CPU and wall, are in the note.",
        settings={
            "rounds": rounds,
            "tokens": TOKENS,
            "MindSpore": version_in(interpreter(), "mindspore"),
        },
    )
    print(heading())
    found = steps(rounds)
    wall, cpu = found["wall"], found["cpu"]
    rate = TOKENS / statistics.median(wall["trainer"])
    for other, bar in BARS.items():
        ratio = min(cpu[other]) / min(cpu["trainer"])
        medians = " / ".join(f"{of_turns(seconds, other):.2f}" for seconds in (cpu, wall))
        losses = " and ".join(f"{found['losses'][way]:.4f}" for way in ("trainer", other))
        results.add(
            Row(
                what=f"trainer over a loop {other}, MindSpore",
                bar="" if bar is None else f">= {bar}",
                trueup=f"{ratio:.2f}",
                met=None if bar is None else ratio >= bar,
                note=f"median CPU / wall {medians}; {rate:.0f} tokens/s; last losses {losses}",
            )
        )
    results.raw = {
        clock: {name: [round(value, 5) for value in values] for name, values in found[clock].items()}
        for clock in ("cpu", "wall")
    }
    results.save(quick=args.quick)


if __name__ == "__main__":
    main()
