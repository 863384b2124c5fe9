"""How often the 95 % interval of a signed mean covers the truth, and how wide it is.

The truth is the mean, over the compared steps, of the systematic part: what many repetitions of both runs
have in common. AR(1) noise and random walks have none; of ramps and jumps it is their mean. The width is held
against that of an interval around the same mean by one who knows the shape and the noise.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.curves.test_coverage import covered

COEFFICIENTS = (0.0, 0.5, 0.9, 0.97, 0.99, 1.0)
SHAPES = ("flat", "line", "ramp", "bend", "jump")


def main() -> None:
    """Print one line a noise: coverage / median width for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--sigma", type=float, default=0.02)
    given = parser.parse_args()
    print(
        f"{given.cases} cases of {given.steps} steps; 1.0 is a random walk",
        "AR(1) " + " ".join(SHAPES),
        sep="\n",
    )
    for coefficient in COEFFICIENTS:
        cells = []
        for shape in SHAPES:
            share, width = covered(
                shape, coefficient, num=given.steps, sigma=given.sigma, cases=given.cases, seed=11
            )
            cells.append(f"{100 * share:.0f} % / {width:.2f}")
        print(f"{coefficient:g}", *cells, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
