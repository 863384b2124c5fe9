"""Arrays of every element type, in every layout, for the properties of this folder."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from trueup.numerics.dtypes import DTYPES, Dtype

REAL = [name for name, entry in DTYPES.items() if entry.kind != "complex"]
SHAPES = [
    (),
    (0,),
    (1,),
    (5,),
    (64,),
    (257,),
    (1025,),
    (1, 1),
    (3, 4),
    (4, 0, 2),
    (7, 1, 130),
    (40, 3),
    (3, 2, 3, 5, 7),
]


def random_bits(rng: np.random.Generator, shape: tuple[int, ...], entry: Dtype) -> NDArray[Any]:
    """Any bit pattern: denormals, infinities and NaNs of every payload."""
    raw = rng.integers(0, 256, int(np.prod(shape)) * entry.itemsize, dtype=np.uint8)
    return (raw & 1 if entry.kind == "bool" else raw).view(entry.storage).reshape(shape)


def random_values(
    rng: np.random.Generator, shape: tuple[int, ...], entry: Dtype, zeros: float
) -> NDArray[Any]:
    """Normally distributed values, a share of them zero; raw bits for what numpy cannot hold."""
    values = rng.standard_normal(shape) * 3 * (rng.random(shape) >= zeros)
    if entry.name == "bfloat16":
        bits = np.asarray(values, np.float32).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint16).reshape(shape)
    if entry.name.startswith("float8"):
        return random_bits(rng, shape, entry)
    if entry.kind == "complex":
        return (values + 1j * rng.standard_normal(shape)).astype(entry.storage)
    return (
        np.abs(values).astype(entry.storage)
        if entry.kind in ("uint", "bool")
        else values.astype(entry.storage)
    )


def relayout(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """The same kind of array, no longer contiguous."""
    if layout == "transposed":
        return array.T
    if layout == "sliced" and array.ndim:
        return array[(slice(None), slice(None, None, 2), slice(1, None))[array.ndim % 3 :][0]]
    if layout == "expanded":
        return np.broadcast_to(array, (3, *array.shape))
    if layout == "rolled" and array.ndim > 2:
        return np.moveaxis(array, 1, 0)
    return array


@st.composite
def arrays(draw: st.DrawFn, names: list[str] | None = None) -> tuple[NDArray[Any], str]:
    """An array and the name of its element type."""
    name = draw(st.sampled_from(names or list(DTYPES)))
    entry = DTYPES[name]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.sampled_from(SHAPES))
    if draw(st.booleans()):
        array = random_bits(rng, shape, entry)
    else:
        array = random_values(rng, shape, entry, draw(st.sampled_from([0.0, 0.5, 1.0])))
    layout = draw(st.sampled_from(["contiguous", "transposed", "sliced", "expanded", "rolled"]))
    return relayout(np.asarray(array), layout), name
