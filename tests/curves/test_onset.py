"""How near the named step is to where a difference truly begins: a small version of what
``benchmarks/curves_coverage.py`` measures."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from trueup.curves.simulating import autoregressive
from trueup.curves.statistics.noise import outliers
from trueup.curves.statistics.onset import onset
from trueup.curves.statistics.trend import trended
from trueup.types.arrays import Floats

SLOW: dict[str, Callable[[Floats], Floats]] = {
    "line": lambda u: np.minimum(u, 1),
    "root": lambda u: np.minimum(np.sqrt(u), 1),
    "square": lambda u: np.minimum(u**2, 1),
    "saturating": lambda u: -np.expm1(-3 * u),
    "exponential": lambda u: np.expm1(3 * np.minimum(u, 1)) / math.expm1(3),
    "endless line": lambda u: u,
}
"""how a difference grows, over the part of the run that it needs for it"""


def drawn(
    shape: str, random: np.random.Generator, sigmas: float, coefficient: float
) -> tuple[Floats, int, float]:
    """A difference of noise 1 that grows to ``sigmas`` over part of the run; its onset and that part."""
    num = int(random.choice([2000, 5000, 10000]))
    begin = int(num * random.uniform(0.15, 0.85))
    length = num * random.uniform(0.1, 0.5)
    grown = SLOW[shape](np.maximum(np.arange(num) - begin + 1, 0) / length)
    return sigmas * grown + autoregressive(num, coefficient, 1.0, random), begin, length


def named(
    shape: str, sigmas: float, coefficient: float, *, cases: int, seed: int = 0
) -> tuple[list[float], list[float]]:
    """Errors in shares of the run, signed: of the named step, and of one told shape, size and noise."""
    random = np.random.default_rng(seed)
    errors, best = [], []
    for _ in range(cases):
        values, begin, length = drawn(shape, random, sigmas, coefficient)
        bad = outliers(values)
        found = onset(values, np.arange(len(values)), bad, trended(values, ~bad))
        assert found is not None
        errors.append((found.index - begin) / len(values))
        best.append((_told(values, SLOW[shape], sigmas, length, coefficient) - begin) / len(values))
    return errors, best


def _told(
    values: Floats, shape: Callable[[Floats], Floats], sigmas: float, length: float, coefficient: float
) -> int:
    """The median place by the likelihood, all else known."""
    at = np.arange(len(values))
    places = np.unique(np.linspace(0, len(values) - 2, 400).round().astype(int))
    for _ in range(2):
        squares = []
        for place in places:
            rest = values - sigmas * shape(np.maximum(at - place + 1, 0) / length)
            rest = rest[1:] - coefficient * rest[:-1]
            squares.append(float(rest @ rest))
        chances = np.exp(-(np.array(squares) - min(squares)) / 2 / (1 - coefficient**2))
        middle = int(places[np.searchsorted(np.cumsum(chances) / chances.sum(), 0.5)])
        step = int(places[1] - places[0])
        places = np.unique(np.clip(np.arange(middle - 4 * step, middle + 4 * step + 1), 0, len(values) - 2))
    return middle


def near(errors: list[float], within: float = 0.01) -> float:
    """Share of errors within 1 % of the run."""
    return float(np.mean(np.abs(errors) <= within))


@pytest.mark.parametrize("shape", ["line", "root", "saturating", "endless line"])
@pytest.mark.parametrize("coefficient", [0.0, 0.5])
def test_a_slow_onset_is_named_within_a_hundredth_of_the_run(shape: str, coefficient: float) -> None:
    errors, _ = named(shape, 30, coefficient, cases=10)
    assert near(errors) >= 0.9


@pytest.mark.parametrize("shape", ["square", "exponential"])
def test_an_onset_of_no_slope_is_named_neither_early_nor_late(shape: str) -> None:
    """Growth from no slope is unseen at first; the named step is still not to one side of its onset."""
    errors, _ = named(shape, 100, 0.0, cases=10)
    assert abs(float(np.median(errors))) < 0.005
    assert near(errors) >= 0.6
