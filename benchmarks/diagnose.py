"""What a diagnosis costs: from no trace at all to the verdict, and a replayed step against a captured one."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

from processes import ROOT, TRUEUP, measure
from results import Results, Row, heading, parser

FAULT = "attention-scale"
METHOD = (
    "The small GPT of the demo (4 layers, hidden 256, sequence 128, batch 4). End to end: capture both "
    "runs with --preset diagnose, noise -k 3, diagnose with --replay; wall seconds of all commands, "
    "imports included. A step: median time from one step's end to the next, of a replay and of a capture "
    "that keeps the same values."
)
MAX_SECONDS, MAX_RATIO = 60.0, 3.0


def program(*options: str) -> list[str]:
    """The command that trains."""
    return [sys.executable, str(ROOT / "bugzoo" / "train.py"), *options]


def end_to_end(folder: Path) -> dict[str, float]:
    """Wall seconds of each command from nothing to the verdict."""
    target, reference = folder / "target", folder / "reference"
    faulty, clean = program("--fault", FAULT), program()
    capture = [*TRUEUP, "capture", "--preset", "diagnose", "-q", "-o"]
    noise = [*TRUEUP, "noise", "-k", "3", "-q", "--reference", str(reference), "--", *clean]
    replay = ["--replay", shlex.join(faulty), "-o", str(folder / "diagnosis")]
    commands = {
        "capture of the target": [*capture, str(target), "--", *faulty],
        "capture of the reference": [*capture, str(reference), "--", *clean],
        "noise": noise,
        "diagnose": [*TRUEUP, "diagnose", str(target), str(reference), *replay],
    }
    return {name: measure(command, allowed=(0, 1)).wall_seconds for name, command in commands.items()}


def seconds_a_step(folder: Path, steps: int) -> dict[str, float]:
    """Median seconds a step, captured and replayed."""
    clean, reference = program("--steps", str(steps)), folder / "long"
    chosen = f"0-{steps - 1}"
    capture = ["capture", "--preset", "diagnose", "--steps", chosen, "-q", "-o", str(reference)]
    measure([*TRUEUP, *capture, "--", *clean])
    replay = ["replay", "--steps", chosen, "--no-refine", "-q", "--reference", str(reference)]
    replay += ["--target", str(reference), "-o", str(folder / "replay")]
    measure([*TRUEUP, *replay, "--", *program("--steps", str(steps), "--fault", FAULT)], allowed=(0, 1))
    return {name: _interval(folder / run) for name, run in (("captured", "long"), ("replayed", "replay"))}


def _interval(run: Path) -> float:
    lines = (run / "scalars" / "rank_00000.jsonl").read_text().splitlines()
    ends = [json.loads(line)["time"] for line in lines]
    return median(after - before for before, after in pairwise(ends))


def main() -> None:
    """Measure both and write ``results/diagnose.json``."""
    given = parser(__doc__).parse_args()
    steps = 3 if given.quick else 8
    results = Results(name="diagnose", title="Diagnosis", method=METHOD, settings={"steps": steps})
    print(heading())
    with tempfile.TemporaryDirectory() as folder:
        parts = end_to_end(Path(folder))
        a_step = seconds_a_step(Path(folder), steps)
    total, ratio = sum(parts.values()), a_step["replayed"] / a_step["captured"]
    results.raw |= {"parts": parts, "seconds_a_step": a_step}
    results.add(
        Row(
            what="from nothing to the verdict",
            bar=f"<= {MAX_SECONDS:g} s",
            trueup=f"{total:.1f} s",
            met=total <= MAX_SECONDS,
            note=", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items()),
        )
    )
    results.add(
        Row(
            what="a replayed step over a captured one",
            bar=f"<= {MAX_RATIO:g}",
            trueup=f"{ratio:.2f}",
            met=ratio <= MAX_RATIO,
            note=f"{a_step['replayed']:.2f} s for {a_step['captured']:.2f} s",
        )
    )
    results.save(quick=given.quick)


if __name__ == "__main__":
    main()
