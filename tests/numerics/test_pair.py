"""Metrics of two tensors, kernel against definition and both against plain numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.numerics.arrays import REAL, random_bits, random_values
from trueup.numerics import pair
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.pair import PAIR_DTYPE, PairMetrics, compare_pair, sums_by_definition


def near(array: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """A copy with some elements' lowest bits changed."""
    unsigned = array.view(f"u{array.dtype.itemsize}")
    return (unsigned ^ rng.integers(0, 2, array.shape).astype(unsigned.dtype)).view(array.dtype)


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(REAL),
    st.sampled_from(REAL),
    st.integers(0, 700),
    st.integers(0, 2**32 - 1),
    st.integers(0, 3),
)
def test_kernel_equals_the_definition(name: str, other: str, size: int, seed: int, kind: int) -> None:
    rng = np.random.default_rng(seed)
    make = random_bits if kind == 0 else lambda r, s, e: random_values(r, s, e, 0.2)
    a = make(rng, (size,), DTYPES[name])
    b = near(a, rng) if kind == 2 else make(rng, (size,), DTYPES[other])
    entries = DTYPES[name], DTYPES[name if kind == 2 else other]
    expected = sums_by_definition(a, b, *entries, 1e-3, 1e-3)
    actual = pair._sums_by_kernel(a, b, *entries, 1e-3, 1e-3)
    for field in PAIR_DTYPE.names or ():
        if field.startswith("sum") or field == "dot":
            with np.errstate(over="ignore", invalid="ignore"):
                bound = np.sqrt(expected["sum_sq_actual"]) * np.sqrt(expected["sum_sq_expected"])
            scale = float(bound) if field == "dot" and np.isfinite(bound) else 0.0
            if field == "dot" and not np.isfinite(bound):
                continue
            np.testing.assert_allclose(
                actual[field], expected[field], rtol=1e-12, atol=1e-12 * scale, err_msg=field
            )
        else:
            np.testing.assert_equal(actual[field], expected[field], err_msg=field)


def test_equals_plain_numpy() -> None:
    rng = np.random.default_rng(0)
    b = rng.standard_normal((300, 7)).astype(np.float32)
    a = (b * np.float32(1.01) + rng.standard_normal(b.shape) * 1e-3).astype(np.float32)
    x, y = a.astype(float), b.astype(float)
    metrics = compare_pair(a, b, rtol=1e-2, atol=1e-3)
    scale = (x * y).sum() / (y * y).sum()
    assert metrics.max_abs_diff == np.abs(x - y).max()
    assert metrics.argmax == np.abs(x - y).argmax()
    assert metrics.mean_abs_diff == pytest.approx(np.abs(x - y).mean())
    assert metrics.max_rel_diff == pytest.approx((np.abs(x - y) / np.abs(y)).max())
    assert metrics.rel_l2 == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(y))
    assert metrics.cosine_similarity == pytest.approx((x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y))
    assert metrics.scale == pytest.approx(scale)
    assert metrics.residual == pytest.approx(np.linalg.norm(x - scale * y) / np.linalg.norm(x))
    assert metrics.fraction_above == np.mean(np.abs(x - y) > 1e-3 + 1e-2 * np.abs(y))
    relative = np.abs(x - y) / np.abs(y)
    assert metrics.fraction_within_thousandth == pytest.approx(np.mean(relative <= 1e-3))
    assert metrics.fraction_within_five_thousandths == pytest.approx(np.mean(relative <= 5e-3))
    assert metrics.num_bits_different == np.count_nonzero(a != b)


@settings(deadline=None)
@given(st.sampled_from(list(DTYPES)), st.integers(1, 600), st.integers(0, 2**32 - 1))
def test_identity_is_zero(name: str, size: int, seed: int) -> None:
    array = random_bits(np.random.default_rng(seed), (size,), DTYPES[name])
    metrics = compare_pair(array, array.copy(), name, name)
    assert metrics.num_bits_different == metrics.num_nonfinite_mismatch == 0
    if metrics.num_compared:
        assert metrics.max_abs_diff == metrics.rel_l2 == metrics.max_ulp_diff == metrics.fraction_above == 0


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 600))
def test_symmetric_where_it_should_be(seed: int, size: int) -> None:
    a, b = np.random.default_rng(seed).standard_normal((2, size)).astype(np.float32)
    one, two = compare_pair(a, b), compare_pair(b, a)
    for field in ("max_abs_diff", "max_ulp_diff", "num_bits_different", "argmax"):
        assert getattr(one, field) == getattr(two, field)
    assert one.cosine_similarity == pytest.approx(two.cosine_similarity)


def test_non_finite_kinds() -> None:
    a = np.array([np.nan, np.inf, np.inf, 1.0, -np.inf, np.nan], np.float32)
    b = np.array([np.nan, np.inf, -np.inf, np.nan, 2.0, 1.0], np.float32)
    metrics = compare_pair(a, b)
    assert metrics.num_nonfinite_mismatch == 4
    assert metrics.num_compared == 0
    assert metrics.max_abs_diff is metrics.rel_l2 is metrics.argmax is metrics.cosine_similarity is None


def test_nothing_and_zero() -> None:
    assert compare_pair(np.zeros(0), np.zeros(0)).rel_l2 is None
    zero, one = np.zeros(3), np.ones(3)
    assert compare_pair(zero, zero).rel_l2 == 0
    assert compare_pair(one, zero).rel_l2 == np.inf
    assert compare_pair(one, zero).scale is None
    assert compare_pair(zero, one).rel_l2 == 1
    assert compare_pair(zero, one).cosine_similarity == 0


def test_scale_fault_has_no_residual() -> None:
    b = np.random.default_rng(1).standard_normal(1000)
    metrics = compare_pair(1.002 * b, b)
    assert metrics.scale == pytest.approx(1.002, rel=1e-12)
    assert metrics.residual == pytest.approx(0, abs=1e-7)
    assert metrics.rel_l2 == pytest.approx(0.002, rel=1e-9)


def test_across_dtypes_ulp_is_unknown() -> None:
    metrics = compare_pair(np.array([1.0, 2.0], np.float16), np.array([1.0, 2.5], np.float32))
    assert metrics.max_ulp_diff is None
    assert metrics.num_bits_different == 1
    assert metrics.max_abs_diff == 0.5


def test_complex_parts_and_element_index() -> None:
    a = np.array([1 + 1j, 2 + 2j, 3 + 3j])
    b = a.copy()
    b[2] += 0.5j
    metrics = compare_pair(a, b)
    assert (metrics.numel, metrics.argmax, metrics.max_abs_diff) == (6, 2, 0.5)
    with pytest.raises(ValueError, match="complex"):
        compare_pair(a, a.real)


def test_large_integers_differ_by_ulp_though_not_by_value() -> None:
    a, b = np.array([2**63 - 1, 5]), np.array([-(2**63), 5])
    assert compare_pair(a, b).max_ulp_diff == 2**64 - 1
    close = compare_pair(np.array([2**60]), np.array([2**60 + 1]))
    assert (close.max_abs_diff, close.max_ulp_diff) == (0.0, 1)


def test_memory_map(tmp_path: Path) -> None:
    array = np.random.default_rng(2).standard_normal(10_000).astype(np.float32)
    with (tmp_path / "values").open("wb") as file:
        file.write(b"abc")  # tensors on disk need not be aligned
        array.tofile(file)
    mapped = np.memmap(tmp_path / "values", np.float32, "r", offset=3)
    assert compare_pair(mapped, array).num_bits_different == 0


def test_sizes_must_agree() -> None:
    with pytest.raises(ValueError, match="3 elements against 4"):
        compare_pair(np.zeros(3), np.zeros(4))


def test_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.random.default_rng(3).standard_normal((2, 999))
    fast = compare_pair(a, b, rtol=0.1)
    monkeypatch.setattr(pair, "AVAILABLE", False)
    slow = compare_pair(a, b, rtol=0.1)
    for field in PairMetrics.__dataclass_fields__:
        assert getattr(fast, field) == pytest.approx(getattr(slow, field), rel=1e-12)


@pytest.mark.parametrize("factor", [1 / 65536, 1 / 1024, 0.999999, 1.0, 1024.0, 65536.0])
def test_residual_of_a_multiple_is_lost_in_no_scale(factor: float) -> None:
    rng = np.random.default_rng(1)
    y = rng.normal(size=5000).astype(np.float32)
    exact = compare_pair((y * np.float32(factor)).astype(np.float32), y)
    assert exact.residual is not None
    assert exact.residual < 1e-7
    beside = compare_pair((y * np.float32(factor) * (1 + 1e-5 * rng.normal(size=5000))).astype(np.float32), y)
    assert beside.residual == pytest.approx(1e-5, rel=0.05)
