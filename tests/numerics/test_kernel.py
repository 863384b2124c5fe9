"""The C kernel against the numpy definitions it makes fast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from tests.numerics.arrays import arrays
from trueup.numerics import _native
from trueup.numerics._native import EVERYTHING, summarise_array, summarise_by_definition
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import HAS_CRC32, HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS, SUMMARY_DTYPE

EXACT = (
    "numel", "num_nan", "num_posinf", "num_neginf", "num_zero", "minimum", "maximum", "smallest_nonzero",
    "digest", "crc32", "flags",
)  # fmt: skip


def assert_same(actual: np.void, expected: np.void, rtol: float = 1e-6) -> None:
    for name in EXACT:
        np.testing.assert_equal(actual[name], expected[name], err_msg=name)
    norm = float(expected["l2_norm"])
    if norm < 1e150 or np.isnan(norm):  # beyond, sums of float64 overflow in an order-dependent way
        rms = norm / np.sqrt(max(int(expected["numel"]), 1))
        np.testing.assert_allclose(actual["l2_norm"], norm, rtol=rtol)
        np.testing.assert_allclose(
            actual["mean"], expected["mean"], rtol=rtol, atol=rtol * np.nan_to_num(rms)
        )
        np.testing.assert_allclose(
            actual["sketch"].astype(float),
            expected["sketch"].astype(float),
            rtol=1e-5,
            atol=1e-6 * np.nan_to_num(norm),
        )


def test_the_kernel_was_built() -> None:
    """Without it the properties below would compare the definition with itself."""
    assert _native.AVAILABLE


def test_the_kernel_and_numpy_agree_on_the_layouts() -> None:
    from trueup.numerics.pair import PAIR_DTYPE

    assert _native.kernels.SUMMARY_BYTES == SUMMARY_DTYPE.itemsize == 352
    assert PAIR_DTYPE.itemsize == _native.kernels.PAIR_BYTES


@settings(deadline=None, max_examples=150)
@given(arrays())
def test_equals_the_definition(case: tuple[NDArray[Any], str]) -> None:
    array, dtype = case
    assert_same(summarise_array(array, EVERYTHING, dtype), summarise_by_definition(array, EVERYTHING, dtype))


@settings(deadline=None, max_examples=100)
@given(arrays())
def test_the_portable_loops_do_too(case: tuple[NDArray[Any], str]) -> None:
    array, dtype = case
    assert not _native.kernels.allow_avx512(False)
    try:
        actual = summarise_array(array, EVERYTHING, dtype)
    finally:
        _native.kernels.allow_avx512(True)
    assert_same(actual, summarise_by_definition(array, EVERYTHING, dtype))


@settings(deadline=None)
@given(arrays())
def test_layout_does_not_matter(case: tuple[NDArray[Any], str]) -> None:
    array, dtype = case
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    assert_same(summarise_array(array, EVERYTHING, dtype), summarise_array(contiguous, EVERYTHING, dtype))


@pytest.mark.parametrize("want", [HAS_STATISTICS, HAS_DIGEST, HAS_SKETCH, HAS_CRC32])
def test_computes_only_what_is_asked(want: int) -> None:
    array = np.random.default_rng(0).standard_normal((37, 41)).astype(np.float32)
    whole, part = summarise_array(array, EVERYTHING), summarise_array(array, want)
    assert part["flags"] == want
    assert (part["digest"] == whole["digest"]) == (want == HAS_DIGEST)
    assert (part["crc32"] == whole["crc32"]) == (want == HAS_CRC32)
    assert np.isnan(part["mean"]) == (want != HAS_STATISTICS)
    assert part["sketch"].any() == (want == HAS_SKETCH)


@pytest.mark.parametrize("name", DTYPES)
def test_empty(name: str) -> None:
    summary = summarise_array(np.zeros((3, 0), DTYPES[name].storage), EVERYTHING, name)
    assert summary["numel"] == 0 == summary["digest"] == summary["crc32"] == summary["num_zero"]
    assert all(
        np.isnan(summary[field]) for field in ("minimum", "maximum", "mean", "l2_norm", "smallest_nonzero")
    )
    assert not summary["sketch"].any()


def test_non_finite_everywhere() -> None:
    for place in range(0, 3000, 97):
        array = np.random.default_rng(place).standard_normal(3000).astype(np.float32)
        array[place], array[(place + 1) % 3000], array[(place + 300) % 3000] = np.nan, np.inf, -np.inf
        summary = summarise_array(array, EVERYTHING)
        assert (summary["num_nan"], summary["num_posinf"], summary["num_neginf"]) == (1, 1, 1)
        assert_same(summary, summarise_by_definition(array, EVERYTHING))


def test_only_non_finite() -> None:
    summary = summarise_array(np.array([np.nan, np.inf], np.float32))
    assert np.isnan(summary["l2_norm"])
    assert np.isnan(summary["minimum"])


@pytest.mark.parametrize("scale", [1e30, 1e-25, 1e-38, 1e-44])
def test_scales_at_which_fp32_squares_overflow_or_vanish(scale: float) -> None:
    array = (np.random.default_rng(1).standard_normal(10_000) * scale).astype(np.float32)
    with np.errstate(over="ignore"):  # the twin: fp32 arithmetic fails here
        naive = np.sqrt(np.square(array).sum(dtype=np.float32))
    truth = np.sqrt(np.square(array.astype(float)).sum())
    assert summarise_array(array)["l2_norm"] == pytest.approx(truth, rel=1e-6, abs=0)
    assert naive != pytest.approx(truth, rel=1e-6, abs=0)


def test_a_huge_value_does_not_hide_small_ones() -> None:
    array = np.full(5000, 1e-25, np.float32)
    array[1234] = 1e30
    summary = summarise_array(array)
    assert summary["smallest_nonzero"] == array[0]
    assert summary["mean"] == pytest.approx(1e30 / 5000, rel=1e-6)


@pytest.mark.slow
def test_mean_and_norm_of_sixteen_million() -> None:
    array = np.random.default_rng(2).random(1 << 24, dtype=np.float32)
    truth = array.astype(np.float64)
    summary = summarise_array(array)
    assert summary["mean"] == pytest.approx(truth.mean(), rel=1e-8)
    assert summary["l2_norm"] == pytest.approx(np.sqrt(np.square(truth).sum()), rel=1e-8)
    chained = np.cumsum(array[:1_000_000], dtype=np.float32)[-1]
    truth_of_part = truth[:1_000_000].sum()  # the twin: one fp32 accumulator is not enough
    assert chained != pytest.approx(truth_of_part, rel=1e-8)


def test_bad_arguments_are_refused() -> None:
    summarise = _native.kernels.summarise
    buffer, out = np.zeros(4, np.float32), np.zeros((), SUMMARY_DTYPE)
    data, result = buffer.ctypes.data, out.ctypes.data
    with pytest.raises(ValueError, match="dtype code"):
        summarise(data, (4,), None, 99, 1, result)
    with pytest.raises(ValueError, match="strides"):
        summarise(data, (4,), (1, 1), 1, 1, result)
    with pytest.raises(ValueError, match="negative"):
        summarise(data, (-4,), None, 1, 1, result)
    with pytest.raises(ValueError, match="16"):
        summarise(data, (1,) * 17, None, 1, 1, result)
    with pytest.raises(ValueError, match="exceed"):
        summarise(data, (4,), None, 1, 4, result, (5,), (2,))
    with pytest.raises(TypeError):
        summarise(data, (4,))
    with pytest.raises(ValueError, match="unsupported dtype"):
        summarise_array(np.zeros(3, "<M8[s]"))


def test_probe_sees_ends_and_whole_rewrites() -> None:
    probe = _native.kernels.probe
    for nbytes in (0, 1, 7, 8, 100, 528, 4096, 1_000_003):
        buffer = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
        before = probe(buffer.ctypes.data, nbytes)
        assert probe(buffer.copy().ctypes.data, nbytes) == before
        if nbytes:
            for place in (0, -1):
                changed = buffer.copy()
                changed[place] ^= 1
                assert probe(changed.ctypes.data, nbytes) != before
            assert probe((buffer ^ 1).ctypes.data, nbytes) != before


@pytest.mark.torch
def test_flush_to_zero_in_the_program_changes_nothing() -> None:
    torch = pytest.importorskip("torch")
    array = np.full(300, 1e-40, np.float32)
    expected = summarise_array(array, EVERYTHING)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush-to-zero mode")
    try:
        assert_same(summarise_array(array, EVERYTHING), expected)
        assert float(torch.tensor(1e-40) * 1) == 0  # the twin: the mode was on, and still is
    finally:
        torch.set_flush_denormal(False)
