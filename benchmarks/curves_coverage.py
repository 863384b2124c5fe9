"""How often the 95 % interval of a signed mean covers the truth, how wide it is, and how near the named step
is to a slow onset; ``--write`` puts the tables into docs/curves-accuracy.md, ``--parts`` some of them.

The truth of a mean is that, over the compared steps, of the systematic part: what many repetitions of both
runs have in common. AR(1) noise and random walks have none; of ramps and jumps it is their mean. The width is
held against that of an interval around the same mean by one who knows the shape and the noise; the named step
against those of two who are told more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.curves_oracle import COEFFICIENTS, told, told_less
from tests.curves.test_coverage import Interval, covered, ours
from tests.curves.test_onset import (
    ABRUPT,
    SLOW,
    abrupt,
    drawings,
    found,
    near,
    place_told_law,
    told_all,
    told_laws,
)

SHAPES = ("flat", "line", "ramp", "bend", "jump")
SIGMAS = (10, 30, 100)
LONG = (0.97, 0.99, 1.0)
"""coefficients of noise with a long memory"""
_INTRODUCTION = (
    "# How accurate the numbers of `trueup curves` are\n\n"
    "Written by `python benchmarks/curves_coverage.py --write`, from simulated differences of known truth."
)
FRESH = 59059
"""drawn after the priors were chosen, which was on seed 11"""
PAGE = Path(__file__).parents[1] / "docs" / "curves-accuracy.md"


def main() -> None:
    """Print both tables; write them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--steps", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--sigma", type=float, default=0.02)
    parser.add_argument("--onsets", type=int, default=20)
    parser.add_argument("--seed", type=int, default=FRESH, help="of the intervals' cases")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    wanted = given.parts or list(PARTS)
    kept = _kept()
    sections = [_INTRODUCTION]
    for name, (title, lines) in PARTS.items():
        if name in wanted:
            found = [f"## {title}\n"]
            for line in lines(given):
                print(line, flush=True)
                found.append(line)
            sections.append("\n".join(found).strip("\n"))
        else:
            sections += [kept[title]] if title in kept else []
    if given.write:
        PAGE.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def _kept() -> dict[str, str]:
    """The sections of the page as it is, by title."""
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:] if PAGE.exists() else []
    return {one.partition("\n")[0]: "## " + one.strip("\n") for one in sections}


def _mean(given: argparse.Namespace) -> Iterator[str]:
    yield (
        f"Share of {given.cases} intervals that cover the truth, and their median width over that of an "
        "interval around the mean by one who knows shape and noise. Systematic parts of 0.1 (flat: 0.02), "
        f"noise of {given.sigma:g}. Every cell has cases of its own, which were drawn after the method and "
        "its priors had been chosen (on others). A share of 95 % is known to "
        f"{100 * (0.95 * 0.05 / given.cases) ** 0.5:.1f} %, a mean of all to a third of that."
    )
    for num in given.steps:
        yield f"\n{num:,} steps:\n"
        yield from _intervals(given, num, ours)
    yield (
        "\nUnder a random walk, or noise that remembers a thirtieth of the run or more, a trend and the "
        "noise pass for each other. `trueup curves` prints an interval there that is up to 1.6 times as wide "
        "as what its models say. It may still hold lines under a walk less often than 93 times in 100 (86 of "
        "100 with other seeds), and is more than twice as wide as that of one who knows the noise for ramps "
        "and bends in such noise."
    )


def _limits(given: argparse.Namespace) -> Iterator[str]:
    short = given.steps[0]
    yield (
        f"Cases of {short:,} steps, for one who is told the five shapes, their size, how their places are "
        "drawn, and that noise is AR(1) with one of the six coefficients, but not which of them it is "
        "(benchmarks/curves_oracle.py). By Bayes' rule no interval is better on average over these cases.\n"
    )
    yield from _intervals(given, short, told(short).interval)
    yield (
        "\nThe same for one who is told neither the size (half to twice the true one, of either sign) nor "
        "that there are six coefficients, as nobody is of runs that were not simulated:\n"
    )
    yield from _intervals(given, short, told_less(short).interval, LONG)
    yield (
        "\nA walk's systematic part is what it began with, so that who knows that it is one knows the level "
        "better than from the mean over all steps: widths below 1. Where noise remembers a tenth of the run "
        "(0.99), the second is more than twice as wide as one who knows noise and shape, and covers lines "
        "under a walk less often than 93 times in 100: the steps do not say whether it is a trend, noise "
        "that comes back, or a walk. `trueup curves` weighs thousands of shapes of any size. Its intervals "
        "are wide where both a trend and a memory of a thirtieth of the run or more are there."
    )


def _slow(given: argparse.Namespace) -> Iterator[str]:
    yield (
        f"Share of {given.onsets} cases named within 1 % of the run; the median error in % of the run "
        "(negative: early); the share of the stated 90 % intervals that hold the onset, give or take a "
        "quarter of 1 %; in brackets the share of one who is told the noise, the six laws and how places "
        "and lengths are drawn, and of one who is told all but the place. Runs of 2,000 to 10,000 steps; the "
        "difference grows to 10, 30 or 100 standard deviations of its noise over 10 to 50 % of the run.\n"
    )
    yield from _onsets(given)


def _abrupt(given: argparse.Namespace) -> Iterator[str]:
    yield (
        f"Share of {given.onsets} cases named within 5 steps, and within 1 % of the run; the median error in "
        "steps (negative: early); the share of the stated 90 % intervals that hold the onset, give or take a "
        "quarter of 1 %; in brackets the first two of one who is told law, time constant and noise, and "
        "looks for place and size alone. Runs of 1,000, 2,600 and 5,000 steps; sizes in standard deviations "
        "of the noise, u: steps since the onset.\n"
    )
    yield "| parts by | AR(1) 0 | AR(1) 0.5 | AR(1) 0.9 |"
    yield "|---|---|---|---|"
    for shape in ABRUPT:
        yield f"| {shape} | {' | '.join(_parting(shape, one, given.onsets) for one in (0.0, 0.5, 0.9))} |"
    yield (
        "\nA blow-up `a (exp(u / L) - 1)` is told from what it left, over about `L` steps: its onset is "
        "known to a few times `sqrt(L)` steps times noise over `a`, and less well where noise remembers. "
        "What begins far below the noise is named where it stands out, and its interval is said.\n"
    )


def _parting(shape: str, coefficient: float, cases: int) -> str:
    errors, shares, held, told = [], [], [], []
    for values, begin in abrupt(shape, coefficient, cases=cases, seed=FRESH):
        one, room = found(values), max(1.0, len(values) / 400)
        errors.append(one.index - begin)
        shares.append(errors[-1] / len(values))
        held.append(one.earliest - room <= begin <= one.latest + room)
        other = place_told_law(values, shape, coefficient, begin) - begin
        told.append((abs(other) <= 5, abs(other) <= 0.01 * len(values)))
    five, hundredth = 100 * np.mean(told, axis=0)
    return (
        f"{100 * near(errors, 5):.0f} %, {100 * near(shares):.0f} %, {np.median(errors):+.0f}, "
        f"{100 * np.mean(held):.0f} % ({five:.0f} %, {hundredth:.0f} %)"
    )


PARTS: dict[str, tuple[str, Callable[[argparse.Namespace], Iterator[str]]]] = {
    "mean": ("The 95 % interval of the signed mean", _mean),
    "limits": ("What nobody can do better", _limits),
    "onsets": ("The step of a slow onset", _slow),
    "abrupt": ("The step of an abrupt onset, or of a blow-up", _abrupt),
}


def _intervals(
    given: argparse.Namespace,
    num: int,
    interval: Interval,
    coefficients: tuple[float, ...] = COEFFICIENTS,
) -> Iterator[str]:
    yield f"| noise | {' | '.join(SHAPES)} |"
    yield "|---" * (1 + len(SHAPES)) + "|"
    every: dict[str, list[tuple[float, float]]] = {shape: [] for shape in SHAPES}
    for row, coefficient in enumerate(coefficients):
        cells = []
        for column, shape in enumerate(SHAPES):
            share, width = covered(
                shape,
                coefficient,
                num=num,
                sigma=given.sigma,
                cases=given.cases,
                seed=given.seed + 10 * row + column + num,
                interval=interval,
            )
            every[shape].append((share, width))
            cells.append(f"{100 * share:.1f} %, {width:.2f}")
        noise = "random walk" if coefficient == 1 else f"AR(1) {coefficient:g}"
        yield f"| {noise} | {' | '.join(cells)} |"
    means = (np.mean(found, axis=0) for found in every.values())
    yield f"| mean of all | {' | '.join(f'{100 * share:.1f} %, {width:.2f}' for share, width in means)} |"


def _onsets(given: argparse.Namespace) -> Iterator[str]:
    memories = (0.0, 0.5, 0.9)
    yield "| grows as | " + " | ".join(f"{s} sigma, AR(1) {m:g}" for s in SIGMAS for m in memories) + " |"
    yield "|---" * (1 + len(SIGMAS) * len(memories)) + "|"
    for shape in SLOW:
        cells = []
        for sigmas in SIGMAS:
            cells += [_onset(shape, sigmas, coefficient, given.onsets) for coefficient in memories]
        yield f"| {shape} | {' | '.join(cells)} |"


def _onset(shape: str, sigmas: float, coefficient: float, cases: int) -> str:
    errors, held = [], []
    for values, begin, _ in drawings(shape, sigmas, coefficient, cases=cases, seed=3):
        one, room = found(values), len(values) / 400
        errors.append((one.index - begin) / len(values))
        held.append(one.earliest - room <= begin <= one.latest + room)
    laws, everything = (
        near(told(shape, sigmas, coefficient, cases=cases, seed=3)) for told in (told_laws, told_all)
    )
    middle = 100 * float(np.median(errors))
    return (
        f"{100 * near(errors):.0f} %, {middle:+.2f}, {100 * np.mean(held):.0f} % "
        f"({100 * laws:.0f} %, {100 * everything:.0f} %)"
    )


if __name__ == "__main__":
    main()
