"""Every layout of the reference trainer on MindSpore against one MindSpore process: ten steps.

The layouts are those of ``layouts.py``; those that MindSpore does not run are listed with what the trainer
says of them. In float64, with the same weights and batches: the largest difference of losses, gradients,
norms and weights over ten steps. Some layouts again in float32: there AdamW moves elements whose gradient is
rounding alone, so weights have a bar of their own.

    python benchmarks/mindspore_layouts.py [--only "tp2 sp,z1"]    (the others stay as they are)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from mindspore_step_time import interpreter
from processes import ROOT
from results import FOLDER, Results, Row, heading, parser, version_in

WITHIN = {"float64": 1e-10, "float32": 1e-5}
WEIGHTS_WITHIN = {"float64": 1e-10, "float32": 1e-4}
STEPS = 10
QUICK = ("dp2", "tp2 sp")
WORKER = "benchmarks.workers.mindspore_worlds"


def measured(names: list[str] | None, steps: int) -> dict[str, dict[str, Any]]:
    """What the worker found of each layout: its differences, or why it was refused."""
    command = [str(interpreter()), "-m", WORKER, "--steps", str(steps)]
    command += [] if names is None else ["--only", ",".join(names)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    found: dict[str, dict[str, Any]] = {}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("{"):
                one = json.loads(line)
                found[one.pop("name")] = one
                print(line.rstrip(), flush=True)
    if running.returncode:
        sys.exit(f"the worker ended with {running.returncode}")
    return found


def row_of(name: str, found: dict[str, Any]) -> Row:
    """A layout's line."""
    what = f"{name}, {found['processes']} processes"
    if "refused" in found:
        return Row(what=what, trueup="refused", note=found["refused"])
    if "error" in found:
        return Row(what=what, bar="no error", trueup="error", met=False, note=found["error"])
    far, dtype = found["differences"], found["dtype"]
    weight = far["weight"]
    most = max(value for key, value in far.items() if key != "weight")
    return Row(
        what=f"{what}, {dtype}",
        bar=f"<= {WITHIN[dtype]:.0e}",
        trueup=f"{max(most, weight) if dtype == 'float64' else most:.0e}",
        met=most <= WITHIN[dtype] and weight <= WEIGHTS_WITHIN[dtype],
        note=", ".join(f"{key} {value:.0e}" for key, value in far.items()),
    )


def main() -> None:
    """Measure, show, save."""
    options = parser(__doc__)
    options.add_argument("--only", help="names of layouts, with commas; the others stay as they are")
    args = options.parse_args()
    if not interpreter().exists():
        sys.exit("there is no environment with MindSpore; try: make mindspore")
    results = Results(
        name="mindspore_layouts",
        title="Layouts of the reference trainer on MindSpore against one process",
        method="MindSpore on CPUs, mccl, msrun. The same weights and batches in one process and in the "
        "layout: the largest difference of losses, gradient norms (relative), norms of each parameter's "
        "gradient, gradients of the last step and weights over ten steps. In float32 weights may differ by "
        "1e-4: AdamW moves elements whose gradient is rounding alone.",
        settings={"steps": STEPS, "MindSpore": version_in(interpreter(), "mindspore")},
    )
    names = args.only.split(",") if args.only else list(QUICK) if args.quick else None
    found = measured(names, STEPS)
    before = FOLDER / "mindspore_layouts.json"
    if args.only and before.exists():
        found = {**json.loads(before.read_text())["raw"], **found}
    print(heading())
    results.raw = found
    for name, one in found.items():
        results.add(row_of(name, one))
    results.save(quick=args.quick)


if __name__ == "__main__":
    main()
