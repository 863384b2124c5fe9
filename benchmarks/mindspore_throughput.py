"""Tokens a second of the reference trainer on MindSpore beside a loop written by hand in MindSpore.

One process on the same model in the same run, CPU, one thread, hidden 256, 4 layers, 512 tokens a step. The
ways take turns step by step, and ratios are medians of the turns. By hand once with the optimizer that is
AdamW, and once with MindSpore's fused one, which has no bias correction.
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
        "model; median of steps in turns.",
        settings={
            "rounds": rounds,
            "tokens": TOKENS,
            "MindSpore": version_in(interpreter(), "mindspore"),
        },
    )
    print(heading())
    found = steps(rounds)
    raw: dict[str, list[float]] = found["raw"]
    rate = TOKENS / statistics.median(raw["trainer"])
    for other, bar in BARS.items():
        ratio = statistics.median(b / a for a, b in zip(raw["trainer"], raw[other], strict=True))
        results.add(
            Row(
                what=f"trainer over a loop {other}, MindSpore",
                bar="" if bar is None else f">= {bar}",
                trueup=f"{ratio:.2f}",
                met=None if bar is None else ratio >= bar,
                note=f"{rate:.0f} tokens/s; last losses {found['losses']['trainer']:.4f} and "
                f"{found['losses'][other]:.4f}",
            )
        )
    results.raw = {name: [round(value, 5) for value in seconds] for name, seconds in raw.items()}
    results.save(quick=args.quick)


if __name__ == "__main__":
    main()
