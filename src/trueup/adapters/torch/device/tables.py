"""What the kernel looks up on a device: powers, signs, values of bytes, and tables of runs.

All is made on the host once, copied once, and bounded: 0.6 MB of constants, 2 bytes for each 1024 elements of
the largest tensor seen, and at most ``MAX_KEPT`` tables of 64 KB.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trueup.adapters.torch.device.plan import APART, OFFSETS, WEIGHTS, KernelPlan, offsets_of, weights_of
from trueup.adapters.torch.memory import data_ptr, numpy_of
from trueup.numerics import sketch as sketches
from trueup.numerics.digest import GENERATORS, MASK
from trueup.numerics.dtypes import float64_from_array

MAX_KEPT = 256
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_LEVELS = 4


class Tables:
    """Of one device."""

    def __init__(self, device: torch.device, pinned: Callable[[int], Tensor]) -> None:
        """``pinned``: so many bytes of host memory, from which copies need not be waited for."""
        self._device, self._pinned = device, pinned
        self.num_copied = 0
        """changes whenever something new lies on the device"""
        self.powers = self._put(_powers())
        self.signs = self._put(_signs())
        bytes_ = np.arange(256).astype(np.uint8)
        values = [float64_from_array(bytes_, name).astype(np.float32) for name in _FLOAT8]
        self.float8 = self._put(np.concatenate(values))
        self.blocks = self._put(np.zeros(1, np.int16))
        self._num_blocks = 0
        self._kept: dict[tuple[object, ...], Tensor] = {}

    def cover(self, last_block: int) -> None:
        """Make sure that the sketch blocks up to this one are known."""
        if last_block >= self._num_blocks:
            self._num_blocks = max(1024, 1 << last_block.bit_length())
            start, rotation = sketches.block_places(np.arange(self._num_blocks, dtype=np.int64))
            self.blocks = self._put((start << 6 | rotation).astype(np.int16))

    def fill(self, words: NDArray[np.int64], plan: KernelPlan) -> None:
        """Write into a job's words where the tables of its runs are."""
        inner = plan.inner
        key: tuple[object, ...] = (inner[0].generator, *((dim.size, dim.generator) for dim in inner[1:]))
        words[WEIGHTS] = self._address(
            ("weights", plan.per_word, *key), lambda: weights_of(inner, plan.per_word)
        )
        if plan.walk == APART:
            key = (inner[0].stride, *((dim.size, dim.stride) for dim in inner[1:]))
            words[OFFSETS] = self._address(("offsets", *key), lambda: offsets_of(inner))
        else:
            words[OFFSETS] = inner[-1].generator

    @property
    def is_full(self) -> bool:
        """Whether there are so many that they should be dropped with ``clear``."""
        return len(self._kept) >= MAX_KEPT

    def clear(self) -> list[Tensor]:
        """Drop the tables of runs, and return them: what was launched may still read them."""
        dropped = list(self._kept.values())
        self._kept = {}
        return dropped

    def _address(self, key: tuple[object, ...], make: Callable[[], NDArray[np.int64]]) -> int:
        if key not in self._kept:
            self._kept[key] = self._put(make())
        return int(data_ptr(self._kept[key]))

    def _put(self, array: NDArray[np.generic]) -> Tensor:
        self.num_copied += 1
        host = self._pinned(array.nbytes)
        numpy_of(host)[:] = array.reshape(-1).view(np.uint8)
        words = host.view(getattr(torch, array.dtype.name))
        return words.to(self._device, non_blocking=True)


def _powers() -> NDArray[np.int64]:
    """(17, 4, 1024): ``g^i``, ``g^(1024 i)`` and so on."""
    table = np.empty((len(GENERATORS), _LEVELS, 1024), np.uint64)
    for generator, base in enumerate(GENERATORS):
        for level in range(_LEVELS):
            factors = np.full(1024, pow(base, 1 << (10 * level), MASK + 1), np.uint64)
            factors[0] = 1
            table[generator, level] = np.multiply.accumulate(factors)
    return table.view(np.int64)


def _signs() -> NDArray[np.float64]:
    """3072 as float64, then as bfloat16, then as float32."""
    signs = np.concatenate([sketches.SIGNS, sketches.SIGNS[: sketches.PERIOD]])
    single = np.where(signs < 0, -1, 1).astype(np.float32)
    short = (single.view(np.uint32) >> 16).astype(np.uint16)
    return np.concatenate([single.astype(np.float64), short.view(np.float64), single.view(np.float64)])
