"""What rounding explains of a difference."""

from __future__ import annotations

import pytest

from trueup.numerics.rounding_noise import SPREAD, TIMES, allowed


def test_just_above_is_more_than_rounding() -> None:
    found = allowed(noise=1e-6, norm=0.0, numel=10**12, roundoff=2.0**-24)
    assert TIMES * 1e-6 < found < TIMES * 1.001e-6
    assert 1.001 * TIMES * 1e-6 > found > 0.999 * TIMES * 1e-6


def test_a_few_numbers_are_given_more_room() -> None:
    many, few = (allowed(noise=1e-6, norm=0.0, numel=numel, roundoff=0.0) for numel in (10**12, 1))
    assert few == pytest.approx((1 + SPREAD) * many, rel=1e-4)


def test_one_rounding_is_never_too_much() -> None:
    assert allowed(noise=0.0, norm=3.0, numel=1, roundoff=2.0**-8) == 3 * 2.0**-8
