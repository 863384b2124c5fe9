"""Normally distributed numbers as torch's CPU generator draws them, bit for bit, without torch.

Source: ``ATen/native/cpu/DistributionTemplates.h`` and ``avx_mathfun.h`` of torch 2.13 as its x86 builds
compute them (AVX2; products and sums contracted to one rounding): a Mersenne Twister, 24 of each 32 bits,
Box-Muller over groups of 16, and the logarithm, sine and cosine of the Cephes library in float32.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_GROUP = 16
"""numbers of a group: 8 radii, then 8 angles"""
_CHUNK = 1 << 14
"""numbers at a time: what lies between stays in the processor's cache"""
_TIE, _MASK = 0x10000000, 0x1FFFFFFF
"""the bits of a float64 below float32's, and those that are exactly half way"""
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-005, -1.388731625493765e-003, 4.166664568298827e-002)
_QUARTER_PI = (-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8)
"""minus pi / 4 in three parts"""

Floats = NDArray[np.float32]


def draw_normal(shape: tuple[int, ...], std: float, seed: int) -> Floats:
    """``torch.empty(shape).normal_(0, std, generator=torch.Generator().manual_seed(seed))``.

    Example:
        >>> draw_normal((2, 8), 1.0, 1)[0, :2]
        array([-1.5255959, -0.7502318], dtype=float32)
    """
    twister = np.random.RandomState(seed & 0xFFFFFFFF)
    size = math.prod(shape)
    if size < _GROUP:
        return _few(twister, size, std).reshape(shape)
    found = np.empty(size, np.float32)
    whole = size - size % _GROUP
    for start in range(0, whole, _CHUNK):
        stop = min(start + _CHUNK, whole)
        found[start:stop] = _normal(_uniform(twister, stop - start), std)
    if size > whole:
        _uniform(twister, size - whole)  # drawn, and then the last group is drawn anew
        found[-_GROUP:] = _normal(_uniform(twister, _GROUP), std)
    return found.reshape(shape)


def _few(twister: np.random.RandomState, size: int, std: float) -> Floats:
    """Fewer than a group are computed one by one in float64, two from each pair of uniform numbers."""
    found: list[float] = []
    while len(found) < size:
        words = twister.randint(0, 1 << 32, 4, dtype=np.uint32).astype(np.uint64)
        first, second = (
            int((words[n] << np.uint64(32) | words[n + 1]) & np.uint64((1 << 53) - 1)) * 2.0**-53
            for n in (0, 2)
        )
        radius, angle = math.sqrt(-2.0 * math.log1p(-second)), 2.0 * math.pi * first
        found += [radius * math.cos(angle) * std, radius * math.sin(angle) * std]
    return np.array(found[:size], np.float32)


def _uniform(twister: np.random.RandomState, size: int) -> Floats:
    words = twister.randint(0, 1 << 32, size, dtype=np.uint32)
    return (words & np.uint32(0xFFFFFF)).astype(np.float32) * np.float32(2.0**-24)


def _normal(uniform: Floats, std: float) -> Floats:
    groups = uniform.reshape(-1, 2, _GROUP // 2)
    radius = np.sqrt(np.float32(-2.0) * _logarithm(np.float32(1.0) - groups[:, 0]))
    sine, cosine = _sine_and_cosine(np.float32(2.0 * math.pi) * groups[:, 1])
    both = np.stack((radius * cosine, radius * sine), axis=1) * np.float32(std)
    return both.ravel()


def _fused(a: Floats, b: Floats | float, c: Floats | float) -> Floats:
    """a * b + c, rounded once.

    The product is exact in float64. The sum is rounded there and then to float32: where the first rounding
    ends half way between two float32, what it left out decides.
    """
    product, term = a.astype(np.float64) * np.float32(b), np.float64(np.float32(c))
    total: NDArray[np.float64] = product + term
    half = (total.view(np.int64) & _MASK) == _TIE
    if half.any():
        back = total - product
        left = (product - (total - back)) + (term - back)
        total = np.where(half & (left != 0), np.nextafter(total, np.where(left > 0, np.inf, -np.inf)), total)
    return total.astype(np.float32)


def _polynomial(x: Floats, coefficients: tuple[float, ...]) -> Floats:
    y = np.full_like(x, coefficients[0])
    for one in coefficients[1:]:
        y = _fused(y, x, one)
    return y


def _logarithm(x: Floats) -> Floats:
    """Of x in (0, 1]."""
    bits = np.maximum(x, np.finfo(np.float32).tiny).view(np.uint32)
    exponent = ((bits >> 23).astype(np.int32) - 0x7F).astype(np.float32) + np.float32(1.0)
    mantissa = (bits & np.uint32(0x807FFFFF) | np.uint32(0x3F000000)).view(np.float32)
    small = mantissa < np.float32(math.sqrt(0.5))
    x = (mantissa - np.float32(1.0)) + np.where(small, mantissa, np.float32(0.0))
    exponent = exponent - small.astype(np.float32)
    z = x * x
    y = _fused(_polynomial(x, _LOG) * x, z, exponent * np.float32(-2.12194440e-4))
    return _fused(exponent, 0.693359375, x + (y - z * np.float32(0.5)))


def _sine_and_cosine(x: Floats) -> tuple[Floats, Floats]:
    """Of x in [0, 2 pi)."""
    octant = ((x * np.float32(4.0 / math.pi)).astype(np.int32) + 1) & ~1
    for part in _QUARTER_PI:
        x = _fused(octant.astype(np.float32), part, x)
    z = x * x
    cosine = _fused(_polynomial(z, _COSINE) * z, z, -z * np.float32(0.5)) + np.float32(1.0)
    sine = _fused(_polynomial(z, _SINE) * z, x, x)
    first = (octant & 2) == 0
    return (
        _signed(np.where(first, sine, cosine), octant),
        _signed(np.where(first, cosine, sine), ~(octant - 2)),
    )


def _signed(x: Floats, octant: NDArray[np.int32]) -> Floats:
    """The other sign where bit 2 is set."""
    flip = (octant & 4).astype(np.uint32) << np.uint32(29)
    return (x.view(np.uint32) ^ flip).view(np.float32)
