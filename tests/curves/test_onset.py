"""How near the named step is to where a difference truly begins: a small version of what
``benchmarks/curves_coverage.py`` measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.curves.simulating import autoregressive
from trueup.curves.statistics.noise import come_back, outliers
from trueup.curves.statistics.onset import Onset, onset
from trueup.curves.statistics.trend import trended
from trueup.types.arrays import Floats

Law = Callable[[Floats], Floats]
SLOW: dict[str, Law] = {
    "line": lambda u: np.minimum(u, 1),
    "root": lambda u: np.minimum(np.sqrt(u), 1),
    "square": lambda u: np.minimum(u**2, 1),
    "saturating": lambda u: -np.expm1(-3 * u),
    "exponential": lambda u: np.expm1(3 * np.minimum(u, 1)) / math.expm1(3),
    "endless line": lambda u: u,
}
"""how a difference grows, over the part of the run that it needs for it"""

ABRUPT: dict[str, Law] = {
    "jump of 5": lambda u: 5.0 * (u > 0),
    "jump of 30": lambda u: 30.0 * (u > 0),
    "blow-up 1 (exp(u / 10) - 1)": lambda u: np.expm1(u / 10),
    "blow-up 1 (exp(u / 60) - 1)": lambda u: np.expm1(u / 60),
    "blow-up 4 (exp(u / 60) - 1)": lambda u: 4 * np.expm1(u / 60),
    "blow-up 20 (exp(u / 20) - 1)": lambda u: 20 * np.expm1(u / 20),
    "blow-up 4 (exp(u / 150) - 1)": lambda u: 4 * np.expm1(u / 150),
    "blow-up 4 (exp(u / 60) - 1), up to 50": lambda u: np.minimum(4 * np.expm1(u / 60), 50),
    "blow-up 4 (exp(u / 60) - 1), up to 600": lambda u: np.minimum(4 * np.expm1(u / 60), 600),
    "leap of 3, then 2 (exp(u / 40) - 1)": lambda u: 3 * (u > 0) + 2 * np.expm1(u / 40),
    "line to 30 in 50 steps": lambda u: 30 * np.minimum(u / 50, 1),
    "line to 30 in 200 steps": lambda u: 30 * np.minimum(u / 200, 1),
    "square to 100 in 100 steps": lambda u: 100 * np.minimum(u / 100, 1) ** 2,
    "saturating 50 (1 - exp(-u / 40))": lambda u: -50 * np.expm1(-u / 40),
}
"""how a difference grows over steps, in standard deviations of its noise"""


def abrupt(shape: str, coefficient: float, *, cases: int, seed: int = 0) -> Iterator[tuple[Floats, int]]:
    """Differences of noise 1 that part at once, or blow up; each with its onset."""
    random = np.random.default_rng(seed)
    for _ in range(cases):
        num = int(random.choice([1000, 2600, 5000]))
        begin = int(num * random.uniform(0.15, 0.85))
        with np.errstate(over="ignore"):
            grown = np.minimum(ABRUPT[shape](np.maximum(np.arange(num) - begin + 1, 0.0)), 1e6)
        yield grown + autoregressive(num, coefficient, 1.0, random), begin


def place_told_law(values: Floats, shape: str, coefficient: float, begin: int) -> int:
    """The median place by the likelihood of one who is told law, time constant, noise and where to look."""
    places = np.arange(max(2, begin - 200), min(len(values) - 2, begin + 200))
    end = min(len(values), begin + 400)
    with np.errstate(over="ignore"):
        grown = np.minimum(ABRUPT[shape](np.maximum(np.arange(end) - places[:, None] + 1, 0.0)), 300)
    far = np.flatnonzero(np.abs(values[begin:end]) > 300)
    end = begin + max(2, int(far[0])) if len(far) else end
    places, grown = places[places < end - 1], grown[places < end - 1]
    x, y = (one[..., 1:end] - coefficient * one[..., : end - 1] for one in (grown, values))
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean()
    size = np.einsum("pi,pi->p", x, x)
    logs = (x @ y) ** 2 / size / 2 / (1 - coefficient**2) - 0.5 * np.log(size)
    share = np.cumsum(np.exp(logs - logs.max()))
    return int(places[np.searchsorted(share, 0.5 * share[-1])])


def drawn(
    shape: str, random: np.random.Generator, sigmas: float, coefficient: float
) -> tuple[Floats, int, float]:
    """A difference of noise 1 that grows to ``sigmas`` over part of the run; its onset and that part."""
    num = int(random.choice([2000, 5000, 10000]))
    begin = int(num * random.uniform(0.15, 0.85))
    length = num * random.uniform(0.1, 0.5)
    grown = SLOW[shape](np.maximum(np.arange(num) - begin + 1, 0) / length)
    return sigmas * grown + autoregressive(num, coefficient, 1.0, random), begin, length


def drawings(
    shape: str, sigmas: float, coefficient: float, *, cases: int, seed: int = 0
) -> Iterator[tuple[Floats, int, float]]:
    """The same differences, onsets and lengths each time."""
    random = np.random.default_rng(seed)
    for _ in range(cases):
        yield drawn(shape, random, sigmas, coefficient)


def found(values: Floats) -> Onset:
    """As ``trueup curves`` finds it."""
    bad = outliers(values)
    one = onset(values, np.arange(len(values)), bad, trended(values, ~bad))
    assert one is not None
    return one


def named(shape: str, sigmas: float, coefficient: float, *, cases: int, seed: int = 0) -> list[float]:
    """Errors of the named step in shares of the run, signed."""
    drawn_ones = drawings(shape, sigmas, coefficient, cases=cases, seed=seed)
    return [(found(values).index - begin) / len(values) for values, begin, _ in drawn_ones]


def told_all(shape: str, sigmas: float, coefficient: float, *, cases: int, seed: int = 0) -> list[float]:
    """The same of one who is told law, size, length and noise, and looks for the place alone."""
    return [
        (_place_told_all(values, SLOW[shape], sigmas, length, coefficient) - begin) / len(values)
        for values, begin, length in drawings(shape, sigmas, coefficient, cases=cases, seed=seed)
    ]


def told_laws(shape: str, sigmas: float, coefficient: float, *, cases: int, seed: int = 0) -> list[float]:
    """The same of one who is told the noise, the six laws, and how places and lengths are drawn."""
    return [
        (_place_told_laws(values, coefficient) - begin) / len(values)
        for values, begin, _ in drawings(shape, sigmas, coefficient, cases=cases, seed=seed)
    ]


def _place_told_laws(values: Floats, coefficient: float) -> float:
    """The median place by the likelihood of every law, length and place, integrated over level and size."""
    num, laws = len(values), list(SLOW.values())
    begins = num * np.linspace(0.15, 0.85, 141)
    lengths = np.tile(num * np.linspace(0.1, 0.5, 17), (len(laws), 1))
    for at in range(3):
        chances = np.stack(
            [
                _likelihood(values, law, own, begins, coefficient)
                for law, own in zip(laws, lengths, strict=True)
            ]
        ) + np.log(lengths[:, -1] - lengths[:, 0]).reshape(-1, 1, 1)
        shares = np.exp(chances - chances.max())
        places = np.cumsum(shares.sum(axis=(0, 1)))
        if at < 2:
            low, high = (int(np.searchsorted(places, share * places[-1])) for share in (1e-4, 1 - 1e-4))
            begins = np.linspace(begins[max(0, low - 1)], begins[min(len(begins) - 1, high + 1)], 141)
            for row, logs in zip(lengths, chances.max(axis=2), strict=True):
                likely = np.flatnonzero(logs > logs.max() - 10)
                row[:] = np.linspace(row[max(0, likely[0] - 1)], row[min(16, likely[-1] + 1)], 17)
    return float(begins[np.searchsorted(places, 0.5 * places[-1])])


def _likelihood(values: Floats, law: Law, lengths: Floats, begins: Floats, coefficient: float) -> Floats:
    """Logarithm of it (lengths, begins): made independent step by step, then means over 200 blocks."""
    width = len(values) // 200
    white = values[1:] - coefficient * values[:-1]
    skipped = len(white) % width
    y = white[skipped:].reshape(-1, width).mean(axis=1)
    y = y - y.mean()
    after = skipped + 2 + (np.arange(len(y)) + 0.5) * width - begins[:, None]
    found = []
    for length in lengths:
        x = law(np.maximum(after, 0) / length) - coefficient * law(np.maximum(after - 1, 0) / length)
        x = x - x.mean(axis=1, keepdims=True)
        size, product = np.einsum("pi,pi->p", x, x), x @ y
        explained = np.where(product > 0, product, 0.0) ** 2 / size
        found.append(explained * width / 2 / (1 - coefficient**2) - 0.5 * np.log(size))
    return np.stack(found)


def _place_told_all(values: Floats, shape: Law, sigmas: float, length: float, coefficient: float) -> int:
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


@pytest.mark.parametrize(
    ("shape", "coefficient"),
    [
        *(("line", 0.0), ("line", 0.9), ("root", 0.5), ("root", 0.9)),
        *(("saturating", 0.0), ("saturating", 0.5), ("endless line", 0.5), ("endless line", 0.9)),
    ],
)
def test_a_slow_onset_is_named_within_a_hundredth_of_the_run(shape: str, coefficient: float) -> None:
    assert near(named(shape, 30, coefficient, cases=5)) >= 0.8


@pytest.mark.parametrize(
    ("shape", "coefficient"),
    [
        *(("jump of 30", 0.0), ("jump of 30", 0.5)),
        ("blow-up 4 (exp(u / 60) - 1)", 0.5),
        ("blow-up 4 (exp(u / 60) - 1), up to 600", 0.0),
        ("blow-up 20 (exp(u / 20) - 1)", 0.5),
        ("leap of 3, then 2 (exp(u / 40) - 1)", 0.0),
        *(("line to 30 in 50 steps", 0.0), ("line to 30 in 50 steps", 0.5)),
    ],
)
def test_a_blow_up_is_named_within_five_steps(shape: str, coefficient: float) -> None:
    """It was named 40 steps early, or 130 late where it levels off."""
    errors = [found(values).index - begin for values, begin in abrupt(shape, coefficient, cases=5)]
    assert np.mean(np.abs(errors) <= 5) >= 0.8
    assert max(np.abs(errors)) <= 15


@pytest.mark.parametrize("scale", [0.005, 0.01])
def test_a_slow_blow_up_within_a_hundredth_and_not_after_it_has_left(scale: float) -> None:
    """0.02 (exp(u / 60) - 1) from 1,734 on under noise of 0.005; it was named 1,695."""
    u: Floats = np.maximum(np.arange(2600) - 1733.0, 0.0)
    for seed in range(3):
        noise = autoregressive(2600, 0.0, scale, np.random.default_rng(seed))
        one = found(np.minimum(0.02 * np.expm1(np.minimum(u / 60, 12)), 3.0) + noise)
        assert abs(one.index - 1734) <= 26
        assert one.earliest - 7 <= 1734 <= one.latest + 7


def test_where_growth_begins_unseen_its_interval_says_so() -> None:
    """A twentieth of the noise, doubling every 42 steps: there is no step that anybody could name."""
    u: Floats = np.maximum(np.arange(2600) - 1000.0, 0.0)
    one = found(
        0.05 * np.expm1(np.minimum(u / 60, 9)) + autoregressive(2600, 0.0, 1.0, np.random.default_rng(1))
    )
    assert 1000 < one.index < 1250
    assert one.latest - one.earliest > 5


@pytest.mark.parametrize("shape", ["square", "exponential"])
@pytest.mark.parametrize("coefficient", [0.0, 0.5])
def test_an_onset_of_no_slope_is_named_neither_early_nor_late(shape: str, coefficient: float) -> None:
    """Growth from no slope is unseen at first; its law tells where it began."""
    errors = named(shape, 100, coefficient, cases=5)
    assert abs(float(np.median(errors))) < 0.005
    assert near(errors) >= 0.8


def test_the_stated_interval_holds_an_onset_that_is_not_seen() -> None:
    """Growth from no slope to ten times its noise, under memory: unsure by percent, and so said."""
    held, wide = [], []
    for values, begin, _ in drawings("square", 10, 0.9, cases=12):
        one, room = found(values), len(values) / 400
        held.append(one.earliest - room <= begin <= one.latest + room)
        wide.append((one.latest - one.earliest) / len(values))
    assert np.mean(held) >= 0.75
    assert np.median(wide) > 0.02


def test_a_spike_is_no_leap_that_growth_follows() -> None:
    """A line to 20 of its noise, with spikes of ten steps' noise on it: the nearest was named, as if sure."""
    random = np.random.default_rng(7)
    for begin in (900, 1500, 2300):
        values = random.standard_normal(3000) + 20 / (3000 - begin) * np.maximum(np.arange(3000) - begin, 0.0)
        values[random.choice(3000, 5, replace=False)] += random.uniform(10, 40, 5)
        values[begin + 80] += 30
        one = found(values)
        assert abs(one.index - begin) <= 60
        assert one.shape == "slope"


def test_a_line_under_long_memory_is_named_by_the_line() -> None:
    """As likely as all other laws together; by their number, places were 5 % early."""
    assert near(named("endless line", 20, 0.97, cases=8, seed=3), 0.02) >= 0.8


def test_what_stays_is_no_spike() -> None:
    values = np.random.default_rng(8).standard_normal(600)
    values[100] += 30
    values[200:203] += 25
    values[400:] += 20
    assert np.flatnonzero(come_back(values)).tolist() == [100, 200, 201, 202]
    blown = np.random.default_rng(9).standard_normal(300) + np.expm1(np.maximum(np.arange(300) - 200, 0) / 10)
    assert not come_back(blown).any()
