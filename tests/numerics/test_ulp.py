"""Distances in units in the last place."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.numerics.ulp import ulp_distance, unit_roundoff


def test_neighbours_are_one_apart() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        values = np.array([1.0, -1.0, 0.0, 1e-5, 65000.0], dtype)
        np.testing.assert_array_equal(ulp_distance(values, np.nextafter(values, dtype(np.inf))), 1)


def test_zeros_and_signs() -> None:
    tiny = np.nextafter(np.float32(0), np.float32(1))
    a, b = np.array([0.0, tiny, 1.0], np.float32), np.array([-0.0, -tiny, -1.0], np.float32)
    assert ulp_distance(a, b).tolist() == [0, 2, 2 * 0x3F800000]


def test_bfloat16_and_integers() -> None:
    assert ulp_distance(np.array([0x3F80], np.uint16), np.array([0x3F83], np.uint16), "bfloat16")[0] == 3
    assert ulp_distance(np.array([-128], np.int8), np.array([127], np.int8))[0] == 255
    assert ulp_distance(np.array([0], np.uint64), np.array([2**64 - 1], np.uint64))[0] == 2**64 - 1


def test_unit_roundoff_is_half_the_gap() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        assert unit_roundoff(np.dtype(dtype).name) == np.finfo(dtype).eps / 2
    assert unit_roundoff("int32") == 0
    with pytest.raises(ValueError, match="float7"):
        unit_roundoff("float7")


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="complex"):
        ulp_distance(np.zeros(1, np.complex64), np.zeros(1, np.complex64))
    with pytest.raises(ValueError, match="between"):
        ulp_distance(np.zeros(1, np.float32), np.zeros(1, np.float64))
