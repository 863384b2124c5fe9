"""What an update started from, of updates made by Adam's rule and by that of momentum."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.diagnosing.checks.master_start import MasterUpdate, adam_direction, is_at, start_of
from trueup.types.arrays import Floats

RATE, DECAY, EPS = 1e-2, 0.1, 1e-8


def _update(
    share: float, *, size: int = 256, eps: float = EPS, noise: float = 0.0, adam: bool = True
) -> MasterUpdate:
    """From the master plus ``share`` of the copy's rounding error; moments whose bias is not corrected."""
    random = np.random.default_rng(3)
    before = random.standard_normal(size).astype(np.float32).astype(np.float64)
    copy = before.astype(np.float16).astype(np.float64)
    first, second = random.standard_normal(size) * 1e-3, random.uniform(1e-8, 1e-4, size)
    moved = first / (np.sqrt(second) + eps) if adam else first
    start = before + share * (copy - before)
    after = start - RATE * DECAY * start - RATE * moved + noise * random.standard_normal(size)
    direction, steady = adam_direction(first, second) if adam else (first, np.ones(size, bool))
    return MasterUpdate(before=before, copy=copy, after=after, direction=direction, steady=steady)


@pytest.mark.parametrize("adam", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_share_of_the_rounding_is_found(share: float, adam: bool) -> None:
    found = start_of(_update(share, adam=adam))
    assert found is not None
    assert found.value == pytest.approx(share * (1 - RATE * DECAY), abs=1e-3)
    assert is_at(found, 1) is (share == 1.0)
    assert is_at(found, 0) is (share == 0.0)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_an_update_that_the_rule_does_not_explain_tells_nothing_false(share: float) -> None:
    noisy, other_eps = start_of(_update(share, noise=1e-2)), start_of(_update(share, eps=1e-2))
    assert noisy is not None
    assert other_eps is not None
    assert not is_at(noisy, 0)
    assert not is_at(noisy, 1)
    assert not is_at(other_eps, 1 - share)


def test_copies_that_are_the_masters_and_few_elements_tell_nothing() -> None:
    whole = _update(0.0)
    same: Floats = whole.before
    assert (
        start_of(
            MasterUpdate(
                before=same, copy=same, after=whole.after, direction=whole.direction, steady=whole.steady
            )
        )
        is None
    )
    assert start_of(_update(1.0, size=8)) is None
