"""How often trueup curves is right on curves with known truth, and how fast it reads and judges logs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from processes import measure
from results import Results, Row, heading, parser
from tests.curves.simulating import Truth, simulate

from trueup.curves.comparison import CurveComparison, Options, compare_curves
from trueup.curves.conditions import ASSUMABLE
from trueup.curves.curve import Curve

METHOD = (
    "Curves with known truth (tests.curves.simulating): a common trend and data noise, and for every "
    "run its own AR(1) "
    "noise and spikes; target and two references, 1,000 to 8,000 steps, coefficient 0 to 0.97, 0.5 to 2 "
    "spikes in 1,000 "
    "steps of mean height 10 to 40 sigma. The offset's unit is the true standard deviation of the mean "
    "difference, noise "
    "and spikes. A false alarm is any of: not centred, a sure change point, the verdict 'differ'. The "
    "difference parts by "
    "a leap of 2 to 8 sigma, or drifts 10 to 30 sigma until the end. Speed: a fresh process reads and "
    "judges 98 logs "
    "against 2, files in the page cache."
)
OPTIONS = Options(assumed=frozenset(ASSUMABLE))
SECONDS, GIGABYTES = 10.0, 1.0
DISTINCT = 6
"""runs that are simulated; the others are copies of them"""


def truth(random: np.random.Generator, **known: Any) -> Truth:
    """A case drawn at random."""
    return Truth(
        num_steps=int(random.integers(1000, 8001)),
        sigma=float(random.choice([0.003, 0.01, 0.03])),
        coefficient=float(random.choice([0.0, 0.5, 0.9, 0.97])),
        spike_rate=float(random.uniform(0.0005, 0.002)),
        spike_sigmas=float(random.uniform(10, 40)),
        **known,
    )


def alarms(comparison: CurveComparison) -> bool:
    """Whether anything says that the runs differ."""
    centre, onset = comparison.evidence.centre, comparison.evidence.onset
    return bool(
        (centre is not None and not centre.is_centred)
        or (onset is not None and onset.is_sure)
        or comparison.judgement.outcome.value == "differ"
    )


def share(
    num: int,
    seed: int,
    drawn: Callable[[np.random.Generator], Truth],
    hit: Callable[[CurveComparison, Truth], bool],
) -> float:
    """Share of cases that ``hit``."""
    random = np.random.default_rng(seed)
    hits = 0
    for _ in range(num):
        case = drawn(random)
        target, references = simulate(case, int(random.integers(1 << 62)))
        hits += hit(compare_curves(target, references, OPTIONS), case)
    return hits / num


def parting(random: np.random.Generator, shape: str) -> Truth:
    """A case whose target parts from its references."""
    case = truth(random)
    at = int(case.num_steps * random.uniform(0.15, 0.85))
    if shape == "jump":
        return replace(case, change_step=at, jump_sigmas=float(random.uniform(2, 8)))
    return replace(case, change_step=at, end_sigmas=float(random.uniform(10, 30)))


def found(comparison: CurveComparison, case: Truth) -> bool:
    """Whether a sure change point is within 2 % of the run of where it truly is."""
    onset = comparison.evidence.onset
    assert case.change_step is not None
    return (
        onset is not None and onset.is_sure and abs(onset.index - case.change_step) <= 0.02 * case.num_steps
    )


def accuracy(results: Results, num: int) -> None:
    """False alarms, power, change points."""
    false = share(num, 1, truth, lambda c, _: alarms(c))
    results.add(Row(what="false alarms", bar="<= 2 %", trueup=f"{100 * false:.1f} %", met=false <= 0.02))
    for errors, bar in ((5, 0.95), (2, 0.35)):
        power = share(
            num,
            1 + errors,
            lambda random, errors=errors: truth(random, offset_errors=errors),
            lambda c, _: alarms(c),
        )
        results.add(
            Row(
                what=f"power at an offset of {errors} standard errors of the mean difference",
                bar=f">= {100 * bar:.0f} %",
                trueup=f"{100 * power:.1f} %",
                met=power >= bar,
            )
        )
    for number, (shape, words) in enumerate((("jump", "a leap"), ("slope", "a drift"))):
        near = share(num // 2, 20 + number, lambda random, shape=shape: parting(random, shape), found)
        results.add(
            Row(
                what=f"change point within 2 % of the run, {words}",
                bar=">= 90 %",
                trueup=f"{100 * near:.1f} %",
                met=near >= 0.9,
            )
        )


def megatron(curve: Curve) -> str:
    """The log Megatron-LM would have printed of a curve."""
    loss, norm = curve.values("loss"), curve.values("grad_norm")
    assert loss is not None
    assert norm is not None
    num = len(loss)
    return "".join(
        f" [2026-11-21 10:00:00] iteration {at:8d}/{num:8d} | consumed samples: {512 * at:12d} | elapsed "
        "time per "
        "iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 312.2 | learning rate: 1.000000E-04 "
        "| global batch "
        f"size:   512 | lm loss: {value:.6E} | loss scale: 1.0 | grad norm: {size:.3f} | number of "
        "skipped iterations:   0 "
        "| number of nan iterations:   0 |\n"
        for at, value, size in zip(range(1, num + 1), loss.tolist(), norm.tolist(), strict=True)
    )


READ = """
import json, resource, sys, time
start = time.perf_counter()
from trueup.curves.comparison import Options
from trueup.curves.conditions import ASSUMABLE
from trueup.curves.many import compare_many
names = json.loads(sys.argv[1])
outcomes = {}
for one in compare_many(names[2:], names[:2], options=Options(assumed=frozenset(ASSUMABLE))):
    outcomes[one.judgement.outcome.value] = outcomes.get(one.judgement.outcome.value, 0) + 1
took = time.perf_counter() - start
print(json.dumps([took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, outcomes]))
"""


def speed(results: Results, runs: int, steps: int) -> None:
    """Logs read and judged, of two formats."""
    target, references = simulate(Truth(num_steps=steps, num_references=DISTINCT - 1), 0)
    with tempfile.TemporaryDirectory() as folder:
        written: dict[str, list[str]] = {"Megatron-LM": [], "CSV": []}
        for number in range(runs):
            log, table = (Path(folder) / f"{number}.{ending}" for ending in ("log", "csv"))
            if number < DISTINCT:
                curve = [target, *references][number]
                log.write_text(megatron(curve))
                curve.frame.write_csv(table)
            else:  # a copy costs as much to read as another run
                shutil.copyfile(Path(folder) / f"{number % DISTINCT}.log", log)
                shutil.copyfile(Path(folder) / f"{number % DISTINCT}.csv", table)
            written["Megatron-LM"].append(str(log))
            written["CSV"].append(str(table))
        for title, names in written.items():
            size = sum(os.path.getsize(name) for name in names)
            done = measure([sys.executable, "-c", READ, json.dumps(names)])
            took, peak, outcomes = json.loads(done.output.splitlines()[-1])
            results.raw[title] = {
                "seconds": took,
                "cpu_seconds": done.cpu_seconds,
                "peak_bytes": peak,
                "bytes": size,
                "outcomes": outcomes,
            }
            what = f"{runs} logs of {steps:,} steps, {title} ({size / 1e9:.1f} GB)"
            cpu = f"{done.cpu_seconds:.1f} s of CPU"
            results.add(
                Row(
                    what=f"{what}: time",
                    bar=f"<= {SECONDS:g} s",
                    trueup=f"{took:.1f} s",
                    met=took <= SECONDS,
                    note=cpu,
                )
            )
            results.add(
                Row(
                    what=f"{what}: memory",
                    bar=f"<= {GIGABYTES:g} GB",
                    trueup=f"{peak / 1e9:.2f} GB",
                    met=peak / 1e9 <= GIGABYTES,
                )
            )


def main() -> None:
    """Measure all and write ``results/curves.json``."""
    given = parser(__doc__).parse_args()
    num = 60 if given.quick else 500
    runs, steps = (10, 10_000) if given.quick else (100, 100_000)
    results = Results(
        name="curves", title="Curves", method=METHOD, settings={"cases": num, "logs": runs, "steps": steps}
    )
    print(heading())
    accuracy(results, num)
    speed(results, runs, steps)
    results.save(quick=given.quick)


if __name__ == "__main__":
    main()
