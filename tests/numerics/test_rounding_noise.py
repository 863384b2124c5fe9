"""What rounding explains of a difference."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.numerics.rounding_noise import SPREAD, TIMES, allowed


def test_just_above_is_more_than_rounding() -> None:
    found = allowed(noise=1e-6, norm=0.0, numel=10**12, roundoff=2.0**-24)
    assert TIMES * 1e-6 < found < TIMES * 1.001e-6
    assert 1.001 * TIMES * 1e-6 > found > 0.999 * TIMES * 1e-6


def test_a_few_numbers_are_given_more_room() -> None:
    many, few = (allowed(noise=1e-6, norm=0.0, numel=numel, roundoff=0.0) for numel in (10**12, 1))
    assert few == pytest.approx((1 + SPREAD) * many, rel=1e-4)


@pytest.mark.parametrize("number", [1.0, 1.0 + 2.0**-23, 1.3, 1.999])
def test_the_next_number_of_the_dtype_is_never_too_much(number: float) -> None:
    one = np.float32(number)
    after, second = np.nextafter(one, np.float32(4)), one + np.float32(2.0**-21)
    found = allowed(noise=0.0, norm=float(one), numel=1, roundoff=2.0**-24)
    assert float(after) - float(one) <= found < float(second) - float(one)
