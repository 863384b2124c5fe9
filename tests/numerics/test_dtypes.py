"""The table of element types, and decoding against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.numerics._native import summarise_array
from trueup.numerics.dtypes import DTYPES, dtype_of, float64_from_array


def test_codes_are_distinct() -> None:
    assert sorted(entry.code for entry in DTYPES.values()) == list(range(len(DTYPES)))


def test_unknown_and_mismatched_names() -> None:
    with pytest.raises(ValueError, match="float8_e8m0fnu"):
        dtype_of(np.zeros(1, np.uint8), "float8_e8m0fnu")
    with pytest.raises(ValueError, match="bytes"):
        dtype_of(np.zeros(1, np.uint8), "bfloat16")


FLOATS = [name for name, entry in DTYPES.items() if entry.kind == "float"]


@pytest.mark.torch
@pytest.mark.parametrize("name", FLOATS)
def test_limits_are_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    info = torch.finfo(getattr(torch, name))
    entry = DTYPES[name]
    assert (entry.smallest_normal, entry.max) == (info.smallest_normal, info.max)
    if name != "float8_e5m2fnuz":  # torch 2.13 says 1/8 there, though 1.25 follows on 1
        assert 2 * entry.eps == info.eps


@pytest.mark.parametrize("name", [name for name in FLOATS if DTYPES[name].itemsize <= 2])
def test_unit_roundoff_is_half_the_gap_above_one(name: str) -> None:
    entry = DTYPES[name]
    patterns = np.arange(1 << (8 * entry.itemsize)).astype(f"u{entry.itemsize}").view(entry.storage)
    values = float64_from_array(patterns, name)
    assert values[values > 1].min() - 1 == 2 * entry.eps


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name in FLOATS if DTYPES[name].itemsize <= 2])
def test_every_bit_pattern_decodes_as_in_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    entry = DTYPES[name]
    patterns = np.arange(1 << (8 * entry.itemsize)).astype(f"u{entry.itemsize}")
    dtype = getattr(torch, name)
    truth = torch.from_numpy(patterns.copy()).view(dtype).double().numpy()
    np.testing.assert_array_equal(float64_from_array(patterns.view(entry.storage), name), truth)
    for pattern, value in zip(
        patterns[:: 1 + len(patterns) // 2048], truth[:: 1 + len(patterns) // 2048], strict=True
    ):
        summary = summarise_array(np.array([pattern]).view(entry.storage), 1, name)
        np.testing.assert_array_equal(summary["mean"], value if np.isfinite(value) else np.nan)
