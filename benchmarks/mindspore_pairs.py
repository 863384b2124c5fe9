"""One file trained on MindSpore and on PyTorch: what trueup says of the pair, and 1,000 steps of it.

Every layout is captured on both frameworks at L0 and mix; ``compare`` and ``diagnose`` get each pair without
a map: the same layout, one process against a layout, and two different layouts. Then 1,000 steps of the tiny
configuration on MindSpore, against PyTorch and two repeats of it.

What a repeat is: PyTorch on a CPU has the same bits again, also with another number of threads. It is
repeated as ``trueup noise`` does, from weights of which one in twelve elements is moved to the next float32.
The spread is the larger of the two repeats' differences from the run they repeat.

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

import numpy as np
from mindspore_step_time import interpreter
from numpy.typing import NDArray
from processes import ROOT
from results import FOLDER, Results, Row, heading, line, parser, version_in

from trueup_gpt.parts import PartReader

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
CONTINUED = 20
"""steps for which a run is continued on PyTorch"""
REPEATS = ("repeat 1", "repeat 2")
OTHER_ORDER = "dataset_config.data_layout=SBH"
"""sums of the same numbers in another order"""
WIDE = tuple(
    f"model_config.{key}_dtype=float64"
    for key in ("params", "compute", "softmax_compute", "residual_connection")
)
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mindspore": ("mindspore", ()),
    "pytorch": ("pytorch", ()),
    **dict.fromkeys(REPEATS, ("pytorch", ())),
    "tokens first": ("pytorch", (OTHER_ORDER,)),
    "mindspore float64": ("mindspore", WIDE),
    "pytorch float64": ("pytorch", WIDE),
    "tokens first float64": ("pytorch", (*WIDE, OTHER_ORDER)),
}
"""framework, and keys that are set"""
WIDE_WITHIN = 1e-10


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


@dataclass(slots=True)
class LongRuns:
    """The runs of one file, trained where they are not there."""

    folder: Path
    steps: int

    def place(self, name: str) -> Path:
        """``output_dir`` of a run."""
        return self.folder / name.replace(" ", "_")

    def checkpoint(self, name: str) -> Path:
        """Its last."""
        return self.place(name) / "checkpoints" / f"network_{self.steps:08d}"

    def trained(self, name: str) -> list[float]:
        """Losses of a run."""
        framework, changes = RUNS[name]
        words = training(framework, self.place(name), 1, *self._of_steps(self.steps), *changes)
        if name in REPEATS:
            seed = str(REPEATS.index(name) + 1)
            words = ["benchmarks.workers.perturbed_training", seed, *words[1:]]
        return self._losses(self.place(name), words)

    def continued(self, name: str) -> list[float]:
        """Losses of the next steps, computed by PyTorch whatever trained before."""
        place = self.place(f"{name} continued")
        more = (
            "training_config.resume_training=true",
            f"training_config.load_checkpoint={self.checkpoint(name)}",
        )
        steps = self._of_steps(self.steps + CONTINUED)
        return self._losses(place, training("pytorch", place, 1, *steps, *more))

    def _of_steps(self, number: int) -> tuple[str, ...]:
        numbers = {"training_iters": number, "log_interval": 1, "save_interval": number}
        return tuple(f"training_config.{key}={value}" for key, value in numbers.items())

    @staticmethod
    def _losses(place: Path, words: list[str]) -> list[float]:
        if not (place / "metrics.jsonl").exists():
            command(*words)
        rows = [json.loads(one) for one in (place / "metrics.jsonl").read_text().splitlines()]
        return [row["loss"] for row in rows]

    def weights(self, name: str) -> NDArray[np.float64]:
        """All weights of its last checkpoint, end to end."""
        path = self.checkpoint(name)
        shapes = json.loads((path / "run.json").read_text())["parameters"]
        reader = PartReader(path)
        held = (reader.read(f"model.{fqn}", (0,) * len(shape), tuple(shape)) for fqn, shape in shapes.items())
        return np.concatenate([one.ravel().astype(np.float64) for one in held])


def long_run(folder: Path, steps: int) -> dict[str, Any]:
    """Losses and weights of every run against PyTorch's; what ``trueup curves`` says with the two repeats."""
    runs = LongRuns(folder, steps)
    losses = {name: runs.trained(name) for name in RUNS}
    after = {name: runs.continued(name) for name in ("mindspore", "pytorch", *REPEATS)}
    files = [str(runs.place(name) / "metrics.jsonl") for name in ("mindspore", "pytorch", *REPEATS)]
    judged_by = ("--reference", *files[1:], "--assume", "all", "--json")
    status, said = command("trueup", "curves", files[0], *judged_by, allowed=(0, 1, 2))
    compared = _document(said).get("comparisons") or [{}]
    return {
        "steps": steps,
        "status": status,
        "said": compared[0].get("judgement", {}).get("headline"),
        "from pytorch": {
            name: _apart(runs, name, losses, after) for name in RUNS if name.split(" float64")[0] != "pytorch"
        },
        "mean loss of the last 100 steps": {
            name: statistics.fmean(one[-100:]) for name, one in losses.items()
        },
        "losses of every 20th step": {
            name: [round(one, 6) for one in values[::20]] for name, values in losses.items()
        },
    }


def _apart(
    runs: LongRuns, name: str, losses: dict[str, list[float]], after: dict[str, list[float]]
) -> dict[str, float]:
    """How far a run is from PyTorch's in its dtype."""
    other = "pytorch float64" if name.endswith("float64") else "pytorch"
    gaps = np.subtract(losses[name], losses[other])
    weights, others = runs.weights(name), runs.weights(other)
    found = {
        "weights": float(np.linalg.norm(weights - others) / np.linalg.norm(others)),
        "mean size of loss difference": float(np.abs(gaps).mean()),
        "mean of loss difference": float(gaps.mean()),
        "first loss difference": float(gaps[0]),
        "scatter of loss difference": float(gaps.std()),
        "largest loss difference": float(np.abs(gaps).max()),
    }
    if name in after:
        found["continued on PyTorch"] = float(np.abs(np.subtract(after[name], after[other])).mean())
    return found


def pair_row(name: str, found: dict[str, Any]) -> Row:
    """A pair's line."""
    agree = found["compare"] == found["diagnose"] == 0
    said = f"compare {found['compare']}, diagnose {found['diagnose']}"
    note = f"{found['records'] or 'all'} records compared agree" if agree else str(found["said"])
    return Row(what=name, bar="exit 0", trueup=said, met=agree, note=note)


def steps_rows(found: dict[str, Any]) -> Iterator[Row]:
    """The long run's lines."""
    apart, steps = found["from pytorch"], f"{found['steps']:,} steps of tiny"
    measures = {
        "weights": f"{steps}: weights, MindSpore from PyTorch, relative",
        "continued on PyTorch": f"{steps}, then {CONTINUED} on PyTorch: mean difference of losses",
        "scatter of loss difference": f"{steps}: losses as printed, about their mean difference",
    }
    for measure, what in measures.items():
        ours, repeats = apart["mindspore"][measure], [apart[name][measure] for name in REPEATS]
        shown = " and ".join(f"{one:.2g}" for one in repeats)
        other = apart["tokens first"].get(measure)
        note = f"two repeats: {shown}" + (f"; tokens first: {other:.2g}" if other else "")
        bar = f"<= {max(repeats):.2g}, the repeats'"
        yield Row(what=what, bar=bar, trueup=f"{ours:.2g}", met=ours <= max(repeats), note=note)
    ours = apart["mindspore"]
    yield Row(
        what=f"{steps}: losses as printed, mean difference",
        bar="curves: exit 0",
        trueup=f"{ours['mean of loss difference']:.1e}",
        met=found["status"] == 0,
        note=f"first step {ours['first loss difference']:.1e}, by MindSpore's exp and log on CPUs; "
        f"repeats: {apart[REPEATS[0]]['mean of loss difference']:.1e} and "
        f"{apart[REPEATS[1]]['mean of loss difference']:.1e}; {found['said']}",
    )
    wide, other = apart["mindspore float64"], apart["tokens first float64"]
    largest = max(wide["weights"], wide["largest loss difference"])
    yield Row(
        what=f"{steps} in float64: weights, relative, and largest difference of losses",
        bar=f"<= {WIDE_WITHIN:.0e}",
        trueup=f"{wide['weights']:.1e}, {wide['largest loss difference']:.1e}",
        met=largest <= WIDE_WITHIN,
        note=f"PyTorch with tokens first: {other['weights']:.1e}, {other['largest loss difference']:.1e}",
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
        "compared and diagnosed without a map. Then 1,000 steps of it, against PyTorch and two repeats. "
        "PyTorch on a CPU has the same bits again: it is repeated from weights of which one in twelve "
        "elements is moved to the next number, as trueup noise does. The bar is the larger of the repeats' "
        "differences. Continued: 20 more steps of each run's checkpoint, all on PyTorch, so that one "
        "framework computes all losses.",
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
                print("\n".join(line(row) for row in steps_rows(results.raw[part])), flush=True)
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
    results.rows += list(steps_rows(results.raw["steps"])) if results.raw["steps"] else []
    results.save(quick=quick)


if __name__ == "__main__":
    main()
