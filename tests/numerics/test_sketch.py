"""The sketch is linear, and what it estimates is near the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.numerics.arrays import arrays
from trueup.numerics._native import summarise_array
from trueup.numerics.dtypes import dtype_of, float64_from_array, real_view
from trueup.numerics.sketch import relative_error, scale_residual, sketch
from trueup.numerics.summary import HAS_SKETCH

FLOATS = ["float32", "float16", "float64", "complex64", "int32"]


def of(array: NDArray[Any], *place: Any, dtype: str | None = None) -> NDArray[np.float64]:
    full, offset = place or (None, None)
    return np.asarray(summarise_array(array, HAS_SKETCH, dtype, full, offset)["sketch"], np.float64)


def size(array: NDArray[Any], dtype: str) -> float:
    parts, entry = real_view(array, dtype_of(array, dtype))
    values = float64_from_array(parts, entry.name)
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.square(values[np.isfinite(values)]).sum()))


@settings(deadline=None)
@given(arrays(FLOATS), st.data())
def test_shards_add_up(case: tuple[NDArray[Any], str], data: st.DataObject) -> None:
    array, dtype = case
    norm = size(array, dtype)
    if not array.ndim or norm > 1e30:
        return
    dim = data.draw(st.integers(0, array.ndim - 1))
    cut = data.draw(st.integers(0, array.shape[dim]))
    first, second = np.split(array, [cut], axis=dim)
    offset = tuple(cut if d == dim else 0 for d in range(array.ndim))
    total = of(first, array.shape, (0,) * array.ndim) + of(second, array.shape, offset)
    np.testing.assert_allclose(total, of(array), rtol=1e-5, atol=1e-6 * norm)
    np.testing.assert_allclose(
        of(second, array.shape, offset), sketch(second, array.shape, offset), rtol=1e-5, atol=1e-6 * norm
    )


def test_a_shard_taken_for_the_whole_does_not_add_up() -> None:
    array = np.random.default_rng(0).standard_normal((8, 100))
    total = of(array[:4]) + of(array[4:])
    assert not np.allclose(total, of(array), rtol=1e-3, atol=1e-3)


def test_linear() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 30, 70))
    np.testing.assert_allclose(of(2 * a - b), 2 * of(a) - of(b), atol=1e-4)


def differences(width: int = 256) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(7)
    rows = 512
    channel, row, low_rank = np.zeros((3, rows, width))
    channel[:, 33], row[17] = rng.standard_normal(rows), rng.standard_normal(width)
    low_rank[:] = rng.standard_normal((rows, 1)) * rng.standard_normal(width)
    return {
        "random": rng.standard_normal((rows, width)),
        "constant shift": np.ones((rows, width)),
        "the same in every row": np.broadcast_to(rng.standard_normal(width), (rows, width)).copy(),
        "one channel": channel,
        "one row": row,
        "low rank": low_rank,
        "one sign": np.abs(rng.standard_normal((rows, width))),
    }


@pytest.mark.parametrize("kind", differences())
@pytest.mark.parametrize("width", [64, 256, 1024, 1000])
def test_estimates_the_norm_of_a_difference(kind: str, width: int) -> None:
    reference = np.random.default_rng(8).standard_normal((512, width))
    error = differences(width)[kind]
    error *= 1e-3 * np.linalg.norm(reference) / np.linalg.norm(error)
    estimate = relative_error(
        of(reference + error)[None], of(reference)[None], np.array([np.linalg.norm(reference)])
    )
    assert 1e-3 / 1.5 < estimate[0] < 1.5e-3


def test_the_spread_of_the_estimate_is_what_is_promised() -> None:
    rng = np.random.default_rng(9)
    ratios = []
    for _ in range(200):
        error = rng.standard_normal(5000)
        ratios.append(np.linalg.norm(of(error)) / np.linalg.norm(error))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.03)
    assert 0.05 < np.std(ratios) < 0.13


def test_small_differences_of_bfloat16_are_not_exaggerated() -> None:
    rng = np.random.default_rng(10)
    bits = (rng.standard_normal(1 << 16).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    other = bits.copy()
    other[::97] ^= 1
    a, b = (float64_from_array(x, "bfloat16") for x in (other, bits))
    truth = np.linalg.norm(a - b) / np.linalg.norm(b)
    rows = [of(x, dtype="bfloat16")[None] for x in (other, bits)]
    assert relative_error(*rows, np.array([np.linalg.norm(b)]))[0] == pytest.approx(truth, rel=0.3)


def test_relative_error_of_equal_zero_and_missing() -> None:
    ones, zeros = np.ones((4, 64)), np.zeros((4, 64))
    zeros[3] = np.nan
    error = relative_error(
        ones, np.where(np.arange(4)[:, None] == 0, ones, zeros), np.array([0.0, 0.0, 8.0, 1.0])
    )
    np.testing.assert_array_equal(error, [0.0, np.inf, 1.0, np.nan])


def test_scale_and_residual() -> None:
    rng = np.random.default_rng(11)
    reference = rng.standard_normal((3, 4096))
    target = reference * np.array([[1.002], [1.0], [0.0]])
    target[1] += 1e-2 * rng.standard_normal(4096)
    rows = [np.stack([of(row) for row in side]) for side in (target, reference)]
    scale, residual = scale_residual(*rows)
    assert scale[0] == pytest.approx(1.002, abs=1e-6)
    assert residual[0] < 1e-6
    assert scale[1] == pytest.approx(1.0, abs=0.01)
    assert residual[1] == pytest.approx(1e-2, rel=0.4)
    assert scale[2] == 0
    assert np.isnan(residual[2])
