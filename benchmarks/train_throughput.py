"""Tokens a second of the reference trainer beside plain torch on the same model in the same run.

One process against a loop written by hand; two against torch's DDP, FSDP2 and DTensor. CPU, gloo,
one thread a process, hidden 256, 4 layers, 512 tokens a step. The ways take turns step by step, and
ratios are medians of the turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from processes import ROOT
from results import Results, Row, heading, parser

TOKENS = 512
BARS = {
    ("trainer", "plain"): 0.97,
    ("trainer tp", "DTensor tp"): 1.2,
    ("trainer tp+sp", "DTensor tp+sp"): 1.2,
    ("trainer dp", "DDP"): None,
    ("trainer z1", "DDP"): None,
    ("trainer z3", "FSDP2"): None,
    ("trainer pp", "DDP"): None,
}


def steps(size: int, rounds: int) -> dict[str, Any]:
    """What the worker found with that many processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"] if size > 1 else []
    worker = str(ROOT / "benchmarks" / "workers" / "train_loops.py")
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, *launcher, worker, "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    """Run both, compare, save."""
    args = parser(__doc__).parse_args()
    rounds = 4 if args.quick else 24
    results = Results(
        name="train_throughput",
        title="The reference trainer beside plain torch",
        method="Speed of the trainer over that of plain torch on the same model; median of steps in turns.",
        settings={"rounds": rounds, "tokens": TOKENS},
    )
    print(heading())
    raw: dict[str, list[float]] = {}
    for size in (1, 2):
        found = steps(size, rounds)
        raw |= found["raw"]
    for (ours, theirs), bar in BARS.items():
        ratio = statistics.median(b / a for a, b in zip(raw[ours], raw[theirs], strict=True))
        rate = TOKENS / statistics.median(raw[ours])
        results.add(
            Row(
                what=f"{ours} over {theirs}",
                bar="" if bar is None else f">= {bar}",
                trueup=f"{ratio:.2f}",
                met=None if bar is None else ratio >= bar,
                note=f"{rate:.0f} tokens/s",
            )
        )
    results.raw = {name: [round(value, 5) for value in seconds] for name, seconds in raw.items()}
    results.save(quick=args.quick)


if __name__ == "__main__":
    main()
