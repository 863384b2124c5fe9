"""Series as long runs log them: what is said of the first steps, of waves and of runs that go on from a
checkpoint is true of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.curves.simulating import autoregressive
from trueup.curves.comparison import CurveComparison, compare_curves
from trueup.curves.curve import Curve
from trueup.types.arrays import Floats
from trueup.types.codes import CurvesCode as Curves
from trueup.types.reason import Reason

NUM = 1200
AT = np.arange(NUM)
LEVEL = 2.1 + 8.8 * (1 + AT / 60) ** -0.45


class World:
    """One job: the data's noise is every run's, and shrinks with the loss; each run has its own besides."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.shared = LEVEL + self.random.normal(size=NUM) * 0.01 * (LEVEL - 1)

    def run(self) -> Floats:
        own = autoregressive(NUM, 0.9, 0.004, self.random) * np.clip(AT / 300, 0, 1)
        return np.asarray(self.shared + own)

    def compared(self, target: Floats, *, begin: int = 0, reference_begin: int = 0) -> CurveComparison:
        references = [
            _curve(name, self.run()[reference_begin:], reference_begin) for name in ("gpu1.log", "gpu2.log")
        ]
        return compare_curves(_curve("t.log", target[begin:], begin), references)


def _curve(name: str, loss: Floats, begin: int) -> Curve:
    frame = pl.DataFrame({"step": np.arange(begin + 1, begin + 1 + len(loss)), "loss": loss})
    return Curve(name=name, path=Path(name), frame=frame, format="made", files=())


def _said(found: CurveComparison) -> dict[object, Reason]:
    j = found.judgement
    headline = j.headline.parts[0] if j.headline.code is Curves.NOT_PROVED else j.headline
    assert isinstance(headline, Reason)
    return {one.code: one for one in (headline, *j.reasons, *j.remarks, *j.advice)}


def test_no_run_spikes_where_it_begins() -> None:
    """A loss that stays up, or is an eighth, has the reference above or below it from step 1 on: no rise."""
    world = World(1)
    stuck = np.concatenate([world.run()[:1], 10.4 + world.random.normal(size=NUM - 1) * 0.02])
    for target in (stuck, world.run() / 8):
        said = _said(world.compared(target))
        assert not {Curves.SPIKE, Curves.SPIKE_REFERENCE} & set(said)
    assert Curves.ONSET not in said  # an eighth: the difference changes as the loss does
    spiked = world.run() + np.where(AT >= 20, 4 * np.exp(-(AT - 20) / 8), 0)
    said = _said(world.compared(spiked))
    assert said[Curves.SPIKE].facts["first"] == 21


def test_the_size_before_a_change_is_that_before_the_step_named() -> None:
    world = World(3)
    stuck = np.concatenate([world.run()[:1], 10.4 + world.random.normal(size=NUM - 1) * 0.02])
    onset = _said(world.compared(stuck))[Curves.ONSET]
    before = int(str(onset.facts["step"])) - 1
    assert onset.facts["before"] == pytest.approx((stuck - world.shared)[:before].mean(), abs=0.05)


@pytest.mark.parametrize(
    ("period", "centre", "begin"),
    [(150, 0.0, 1), (210, -0.05, 1), (210, 0.0, 50), (300, 0.0, 1), (300, -0.05, 200)],
)
def test_a_wave_is_no_change_and_not_steady(period: int, centre: float, begin: int) -> None:
    world = World(4)
    wave = np.where(AT > 0, centre + 0.08 * np.sin(2 * np.pi * (AT + begin) / period), 0)
    said = _said(world.compared(world.run() + wave))
    assert not {Curves.ONSET, Curves.JUMP} & set(said)
    if Curves.OFFSET in said:
        assert said[Curves.OFFSET].facts["steady"] == 0


@pytest.mark.parametrize("size", [0.3, -0.3])
def test_a_jump_that_stays_is_a_change_and_a_flat_offset_is_steady(size: float) -> None:
    world = World(5)
    onset = _said(world.compared(world.run() + np.where(AT >= 700, size, 0)))[Curves.ONSET]
    assert abs(int(str(onset.facts["step"])) - 701) <= 3
    steady = np.where(AT > 0, size, 0.0)
    assert _said(world.compared(world.run() + steady))[Curves.OFFSET].facts["steady"] == 1


@pytest.mark.parametrize(
    ("begin", "reference_begin", "side"),
    [(600, 0, "reference"), (0, 600, "target"), (600, 600, None), (1, 0, None)],
)
def test_a_run_that_goes_on_may_have_other_weights(
    begin: int, reference_begin: int, side: str | None
) -> None:
    world = World(6)
    said = _said(world.compared(world.run() + 0.3, begin=begin, reference_begin=reference_begin))
    if side is None:
        assert Curves.FIRST_LOSS in said
        assert Curves.COMPARE_CHECKPOINT not in said
    else:
        assert said[Curves.FIRST_COMMON].facts == {"side": side, "step": 601, "begins": 1}
        assert {Curves.COMPARE_CHECKPOINT} <= set(said)
        assert Curves.COMPARE_FIRST_FORWARD not in said  # weights were updated
