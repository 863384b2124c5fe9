"""The content hash sees values and not their places, adds over pieces, and torch computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.numerics.content import content_hash

MASK = 0xFFFFFFFFFFFFFFFF


@given(seed=st.integers(0, 1000), rows=st.integers(1, 9), columns=st.integers(1, 9))
def test_order_free_and_additive(seed: int, rows: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((rows, columns)).astype(np.float32)
    whole = content_hash(a)
    assert whole == content_hash(a.T) == content_hash(rng.permutation(a.ravel()))
    cut = rows // 2
    assert whole == (content_hash(a[:cut]) + content_hash(a[cut:])) & MASK
    assert whole == content_hash(np.concatenate([a, np.zeros((3, columns), np.float32)]))
    b = a.copy()
    b[0, 0] = np.nextafter(b[0, 0], np.float32(10))
    assert whole != content_hash(b)


def test_a_wider_dtype_of_the_same_values_has_the_same_hash() -> None:
    half = np.linspace(-2, 2, 33).astype(np.float16)
    assert (
        content_hash(half) == content_hash(half.astype(np.float32)) == content_hash(half.astype(np.float64))
    )
    bits = (half.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    assert content_hash(bits, "bfloat16") == content_hash(wide)


@pytest.mark.torch
def test_torch_gives_the_same() -> None:
    torch = pytest.importorskip("torch")
    from trueup.adapters.torch.content import content_total, unsigned

    def hash_of(tensor: Any) -> int:
        total = content_total(tensor)
        assert total is not None
        return unsigned(total)

    values = np.random.default_rng(0).standard_normal((300, 257)).astype(np.float32)
    values[0, :3] = [0.0, -0.0, np.inf]
    tensor = torch.from_numpy(values)
    assert hash_of(tensor) == content_hash(values) == hash_of(tensor.T)
    half = tensor.bfloat16()
    assert hash_of(half) == content_hash(half.float().numpy())
    assert content_total(torch.ones(3, device="meta")) is None
