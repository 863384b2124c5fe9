"""How often the 95 % interval of a signed mean covers the truth, how wide it is, and how near the named step
is to a slow onset; ``--write`` puts both tables into docs/curves-accuracy.md.

The truth of a mean is that, over the compared steps, of the systematic part: what many repetitions of both
runs have in common. AR(1) noise and random walks have none; of ramps and jumps it is their mean. The width is
held against that of an interval around the same mean by one who knows the shape and the noise; the named step
against the one that is told shape, size, length and noise, and looks for the place alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.curves.test_coverage import covered
from tests.curves.test_onset import SLOW, named, near

COEFFICIENTS = (0.0, 0.5, 0.9, 0.97, 0.99, 1.0)
SHAPES = ("flat", "line", "ramp", "bend", "jump")
SIGMAS = (10, 30, 100)
PAGE = Path(__file__).parents[1] / "docs" / "curves-accuracy.md"


def main() -> None:
    """Print both tables; write them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--steps", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--sigma", type=float, default=0.02)
    parser.add_argument("--onsets", type=int, default=40)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    lines = []
    for line in _page(given):
        print(line, flush=True)
        lines.append(line)
    if given.write:
        PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _page(given: argparse.Namespace) -> Iterator[str]:
    yield "# How accurate the numbers of `trueup curves` are\n"
    yield (
        "Written by `python benchmarks/curves_coverage.py --write`, from simulated differences of known "
        "truth.\n"
    )
    yield "## The 95 % interval of the signed mean\n"
    yield (
        f"Share of {given.cases} intervals that cover the truth, and their median width over that of one who "
        f"knows shape and noise. Systematic parts of 0.1 (flat: 0.02), noise of {given.sigma:g}."
    )
    yield (
        "\nWhere the run is about a hundred memories of the noise long or more (AR(1) 0.97: 33 steps, 0.99: "
        "100), it covers 92 to 99 times in 100 and is 1.7 times as wide at most. In a shorter one a trend "
        "under noise of long memory cannot be told from a random walk: the interval is wide enough for both, "
        "and a random walk that looks like a trend is missed once in eight."
    )
    for num in given.steps:
        yield f"\n{num:,} steps:\n"
        yield from _intervals(given, num)
    yield "\n## The step of a slow onset\n"
    yield (
        f"Share of {given.onsets} cases named within 1 % of the run, and the median error in % of the run "
        "(negative: early); in brackets the share of one who is told shape, size, length and noise. Runs of "
        "2,000 to 10,000 steps; the difference grows to 10, 30 or 100 standard deviations of its noise over "
        "10 to 50 % of the run.\n"
    )
    yield from _onsets(given)


def _intervals(given: argparse.Namespace, num: int) -> Iterator[str]:
    yield f"| noise | {' | '.join(SHAPES)} |"
    yield "|---" * (1 + len(SHAPES)) + "|"
    for coefficient in COEFFICIENTS:
        cells = []
        for shape in SHAPES:
            share, width = covered(shape, coefficient, num=num, sigma=given.sigma, cases=given.cases, seed=11)
            cells.append(f"{100 * share:.1f} %, {width:.2f}")
        noise = "random walk" if coefficient == 1 else f"AR(1) {coefficient:g}"
        yield f"| {noise} | {' | '.join(cells)} |"


def _onsets(given: argparse.Namespace) -> Iterator[str]:
    memories = (0.0, 0.5, 0.9)
    yield "| grows as | " + " | ".join(f"{s} sigma, AR(1) {m:g}" for s in SIGMAS for m in memories) + " |"
    yield "|---" * (1 + len(SIGMAS) * len(memories)) + "|"
    for shape in SLOW:
        cells = []
        for sigmas in SIGMAS:
            for coefficient in memories:
                errors, told = named(shape, sigmas, coefficient, cases=given.onsets, seed=3)
                middle = 100 * float(np.median(errors))
                cells.append(f"{100 * near(errors):.0f} %, {middle:+.2f} ({100 * near(told):.0f} %)")
        yield f"| {shape} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
