"""Metrics of summary columns."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.numerics._native import summarise_array
from trueup.numerics.metrics import metrics_from_statistics, rel_diff
from trueup.numerics.summary import SUMMARY_DTYPE


def rows(*arrays: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return np.array([summarise_array(array) for array in arrays], SUMMARY_DTYPE)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 500), st.sampled_from([1e-6, 1e-2, 1.0, 100.0]))
def test_the_bound_is_a_lower_bound(seed: int, size: int, error: float) -> None:
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(size)
    target = reference + error * (rng.standard_normal(size) + rng.standard_normal())
    metrics = metrics_from_statistics(rows(target), rows(reference))
    truth = np.linalg.norm(target - reference) / np.linalg.norm(reference)
    assert metrics.rel_l2_lower_bound[0] <= truth * (1 + 1e-9) + 1e-12


def test_the_bound_sees_scale_and_shift() -> None:
    reference = np.random.default_rng(0).standard_normal(1000)
    metrics = metrics_from_statistics(rows(1.1 * reference, reference + 0.2), rows(reference, reference))
    np.testing.assert_allclose(metrics.rel_l2_lower_bound, [0.1, 0.2], rtol=0.05)


def test_equal_is_zero_and_means_near_zero_do_not_explode() -> None:
    reference = np.array([1.0, -1.0, 1e-9])
    metrics = metrics_from_statistics(rows(reference, reference[::-1] + 1e-12), rows(reference, reference))
    assert metrics.l2_rel_diff[0] == metrics.mean_rel_diff[0] == metrics.max_rel_diff[0] == 0
    assert metrics.mean_rel_diff[1] < 1e-11


def test_zero_empty_and_non_finite() -> None:
    zero, one, empty = np.zeros(3), np.ones(3), np.zeros(0)
    broken = np.array([1.0, np.nan, 1.0])
    metrics = metrics_from_statistics(rows(zero, one, empty, broken), rows(zero, zero, empty, one))
    np.testing.assert_array_equal(metrics.l2_rel_diff[:3], [0.0, np.inf, np.nan])
    assert np.isnan(metrics.rel_l2_lower_bound[2:]).all()
    assert metrics.l2_rel_diff[3] > 0


def test_rel_diff_keeps_missing_numbers_missing() -> None:
    nan = np.nan
    result = rel_diff(np.array([1.0, nan, 1.0]), np.array([1.0, 1.0, 2.0]), np.array([nan, 1.0, 0.0]))
    np.testing.assert_array_equal(result, [nan, nan, np.inf])
