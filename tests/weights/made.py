"""Weights for the properties of this folder: every dtype, any bits, odd shapes and names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.numerics.arrays import random_bits
from trueup.numerics.dtypes import DTYPES
from trueup.weights.weight_set import MemoryWeights, WeightSet, raw_bytes

CKPT = tuple(name for name in DTYPES if not name.startswith(("float8", "complex")))
SAFETENSORS = (*CKPT, "float8_e4m3fn", "float8_e5m2", "complex64")
_SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.from_regex(
    r"(layers\.[0-9]{1,2}\.)?(attn|mlp)\.(weight|bias)", fullmatch=True
)


def weights_of(entries: Mapping[str, tuple[NDArray[Any], str]]) -> MemoryWeights:
    return MemoryWeights(
        {name: array for name, (array, _) in entries.items()},
        dtypes={name: dtype for name, (_, dtype) in entries.items()},
    )


@st.composite
def weight_sets(draw: st.DrawFn, dtypes: tuple[str, ...], *, least: int = 1) -> MemoryWeights:
    """Some weights of ``dtypes``: any bits, any layout in memory, 0-d and empty ones too."""
    names = draw(st.lists(_NAMES, min_size=least, max_size=5, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    entries = {}
    for name in names:
        entry = DTYPES[draw(st.sampled_from(dtypes))]
        array = random_bits(rng, draw(_SHAPES), entry)
        entries[name] = array.T if draw(st.booleans()) else array, entry.name
    return weights_of(entries)


def assert_same(actual: WeightSet, expected: WeightSet) -> None:
    """Names, dtypes, shapes and every bit."""
    assert dict(actual.table) == dict(expected.table)
    for name in expected.table:
        found, wanted = actual.read(name), expected.read(name)
        assert found.shape == wanted.shape
        assert bytes(raw_bytes(found)) == bytes(raw_bytes(wanted)), name


def numbered(**shapes: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    """Arrays of distinct numbers, so that no two places are alike."""
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
