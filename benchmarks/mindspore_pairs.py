"""One file trained on MindSpore and on PyTorch: what trueup says of the pair, and 1,000 steps of it.

Every layout is captured on both frameworks at L0 and mix; ``compare`` and ``diagnose`` get each pair without
a map: the same layout, one process against a layout, and two different layouts. Then 1,000 steps of the tiny
configuration on MindSpore, judged by PyTorch and a repeat of it whose sums have another order
(``trueup curves``).

    python benchmarks/mindspore_pairs.py [--only L0|mix|steps]    (the other parts stay as they are)
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_step_time import interpreter
from processes import ROOT
from results import FOLDER, Results, Row, heading, line, parser, version_in

HALVES = ("dataset_config.batch_size=4", "dataset_config.micro_batch_num=2")
"""two microbatches of four rows"""
DEALT = ("dataset_config.batch_size=4",)
"""the same rows, a microbatch to each of two data-parallel processes"""
MOE = ("moe_config.num_experts=4",)
TP, PP, EP = (f"parallel_config.{kind}_model_parallel_size=2" for kind in ("tensor", "pipeline", "expert"))
LAYOUTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "one": (1, HALVES),
    "tp2 sp": (2, (TP, "parallel_config.sequence_parallel=true", *HALVES)),
    "pp2": (2, (PP, *HALVES)),
    "dp2 zero1": (2, ("parallel_config.zero_level=z1", *DEALT)),
    "one with experts": (1, (*HALVES, *MOE)),
    "ep2": (2, (EP, *DEALT, *MOE)),
}
"""processes, and keys that are set"""
PAIRS = (
    *((name, name) for name in LAYOUTS),
    *((name, "one") for name in ("tp2 sp", "pp2", "dp2 zero1")),
    *(("one", name) for name in ("tp2 sp", "pp2", "dp2 zero1")),
    ("ep2", "one with experts"),
    ("one with experts", "ep2"),
    ("tp2 sp", "pp2"),
    ("dp2 zero1", "tp2 sp"),
    ("pp2", "dp2 zero1"),
)
"""layout on MindSpore, layout on PyTorch"""
QUICK = (("one", "one"), ("tp2 sp", "one"))
LEVELS = ("L0", "mix")
STEPS = 2
LONG = 1000
REPEAT = "pytorch, tokens first"


def command(*words: str, allowed: tuple[int, ...] = (0,)) -> tuple[int, str]:
    """Exit status and output of a program in the environment that has both frameworks."""
    path = f"{interpreter().parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "GLOG_v": "3", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(interpreter()), "-m", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in allowed:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.returncode, done.stdout or done.stderr


def training(framework: str, output: Path, num_processes: int, *changes: str) -> list[str]:
    """The words that train the shipped configuration."""
    settings = (f"training_config.output_dir={output}", "training_config.tensorboard=false", *changes)
    words = [word for one in settings for word in ("--set", one)]
    plain = ["trueup_gpt", "tiny", "--device", "cpu", "--framework", framework]
    return [*plain, "--nproc", str(num_processes), *words]


@dataclass(slots=True)
class Traces:
    """Captured when they are first asked for."""

    folder: Path

    def of(self, framework: str, layout: str, level: str) -> Path:
        """A trace of a layout."""
        path = self.folder / f"{framework} {layout} {level}".replace(" ", "_")
        if not path.exists():
            size, changes = LAYOUTS[layout]
            steps = f"training_config.training_iters={STEPS}"
            program = training(framework, path.with_suffix(".run"), size, steps, *changes)
            capture = ("trueup", "capture", "--level", level, "--quiet", "-o", str(path))
            command(*capture, "--", str(interpreter()), "-m", *program)
        return path


def judged(traces: Traces, target: str, reference: str, level: str) -> dict[str, Any]:
    """What compare and diagnose say of a pair."""
    paths = traces.of("mindspore", target, level), traces.of("pytorch", reference, level)
    words = [str(path) for path in paths]
    asked = (0, 1, 2)
    compared, said = command("trueup", "compare", *words, "--json", allowed=asked)
    out = traces.folder / "diagnosis"
    diagnosed, cause = command(
        "trueup", "diagnose", *words, "-o", str(out), "--no-html", "--json", allowed=asked
    )
    documents = [_document(one) for one in (said, cause)]
    found: dict[str, Any] = {"compare": compared, "diagnose": diagnosed}
    if compared or diagnosed:
        found["said"] = [one.get("headline") for one in documents]
    return found | {"records": documents[0].get("counts", {}).get("compared")}


def _document(said: str) -> dict[str, Any]:
    """What a command printed; an error as its headline."""
    try:
        document: dict[str, Any] = json.loads(said)
    except ValueError:
        return {"headline": " ".join(said.split())[:200]}
    return document


def pairs(
    chosen: tuple[tuple[str, str], ...], level: str, folder: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pair at one level."""
    traces = Traces(folder)
    for target, reference in chosen:
        name = f"{level}: {target} on MindSpore, {reference} on PyTorch"
        yield name, judged(traces, target, reference, level)


def long_run(folder: Path, steps: int) -> dict[str, Any]:
    """Losses of MindSpore, of PyTorch and of a repeat with tokens first; how trueup judges them.

    A repeat with another number of threads has the same bits: the products are too small to be shared.
    """
    other = "dataset_config.data_layout=SBH"
    runs: dict[str, tuple[str, tuple[str, ...]]] = {
        "mindspore": ("mindspore", ()),
        "pytorch": ("pytorch", ()),
        REPEAT: ("pytorch", (other,)),
    }
    losses: dict[str, list[float]] = {}
    files: dict[str, Path] = {}
    for name, (framework, changes) in runs.items():
        output = folder / name.replace(", ", "_").replace(" ", "_")
        files[name] = output / "metrics.jsonl"
        words = training(
            framework,
            output,
            1,
            f"training_config.training_iters={steps}",
            "training_config.log_interval=1",
            *changes,
        )
        if not files[name].exists():
            command(*words)
        rows = [json.loads(one) for one in files[name].read_text().splitlines()]
        losses[name] = [row["loss"] for row in rows]
    target, reference, repeat = files.values()
    judged_by = ("--reference", str(reference), str(repeat), "--assume", "all", "--json")
    status, said = command("trueup", "curves", str(target), *judged_by, allowed=(0, 1, 2))
    last = {name: statistics.fmean(one[-100:]) for name, one in losses.items()}
    compared = _document(said).get("comparisons") or [{}]
    ours, repeated = (differences(losses[name], losses["pytorch"]) for name in ("mindspore", REPEAT))
    return {
        "steps": steps,
        "status": status,
        "said": compared[0].get("judgement", {}).get("headline"),
        "mean difference of losses": statistics.fmean(abs(one) for one in ours),
        "of the repeat": statistics.fmean(abs(one) for one in repeated),
        "about its mean": statistics.pstdev(ours),
        "of the repeat about its mean": statistics.pstdev(repeated),
        "mean loss of the last 100 steps": last,
        "losses of every 20th step": {
            name: [round(one, 6) for one in values[::20]] for name, values in losses.items()
        },
    }


def differences(one: list[float], other: list[float]) -> list[float]:
    """Step by step."""
    return [a - b for a, b in zip(one, other, strict=True)]


def pair_row(name: str, found: dict[str, Any]) -> Row:
    """A pair's line."""
    agree = found["compare"] == found["diagnose"] == 0
    said = f"compare {found['compare']}, diagnose {found['diagnose']}"
    note = f"{found['records'] or 'all'} records compared agree" if agree else str(found["said"])
    return Row(what=name, bar="exit 0", trueup=said, met=agree, note=note)


def steps_row(found: dict[str, Any]) -> Row:
    """The long run's line."""
    ours, repeat = found["mean difference of losses"], found["of the repeat"]
    return Row(
        what=f"{found['steps']:,} steps of tiny: mean difference of losses, MindSpore and PyTorch",
        bar="curves: exit 0",
        trueup=f"{ours:.1e}",
        met=found["status"] == 0,
        note=f"about its mean {found['about its mean']:.1e}; PyTorch's repeat with tokens first: "
        f"{repeat:.1e}, {found['of the repeat about its mean']:.1e}; {found['said']}",
    )


def main() -> None:
    """Capture, compare, diagnose; train; show and save."""
    options = parser(__doc__)
    parts = (*LEVELS, "steps")
    options.add_argument("--only", choices=parts, help="the other parts stay as they are in the results")
    options.add_argument("--keep", type=Path, metavar="DIR", help="for runs; those that are there count")
    args = options.parse_args()
    if not interpreter().exists():
        sys.exit("there is no environment with MindSpore; try: make mindspore")
    results = Results(
        name="mindspore_pairs",
        title="The reference trainer on MindSpore and on PyTorch",
        method="The shipped tiny configuration, captured on both frameworks for two steps at L0 and mix, "
        "compared and diagnosed without a map. Then 1,000 steps of it, judged by trueup curves with PyTorch "
        "as the reference and as its repeat PyTorch with tokens first, which adds in another order.",
        settings={"steps": STEPS, "MindSpore": version_in(interpreter(), "mindspore")},
    )
    before = FOLDER / "mindspore_pairs.json"
    kept = json.loads(before.read_text())["raw"] if args.only and before.exists() else {}
    results.raw = {part: kept.get(part, {}) for part in parts}
    print(heading())
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        for part in parts if args.only is None else (args.only,):
            if part == "steps":
                results.raw[part] = long_run(folder, 20 if args.quick else LONG)
                print(line(steps_row(results.raw[part])), flush=True)
                continue
            results.raw[part] = {}
            for name, found in pairs(QUICK if args.quick else PAIRS, part, folder):
                results.raw[part][name] = found
                print(line(pair_row(name, found)), flush=True)
                _save(results, quick=args.quick)
    _save(results, quick=args.quick)


def _save(results: Results, *, quick: bool) -> None:
    """All that is known, in the order of the parts."""
    results.rows = [pair_row(name, found) for level in LEVELS for name, found in results.raw[level].items()]
    results.rows += [steps_row(results.raw["steps"])] if results.raw["steps"] else []
    results.save(quick=quick)


if __name__ == "__main__":
    main()
