"""What a launch of the kernel is to do, in numpy: stands in for it where a whole run is captured."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trueup.adapters.torch.device.launching import Variant
from trueup.adapters.torch.device.parts import PART_DTYPE
from trueup.adapters.torch.device.plan import (
    APART,
    AS_WORDS,
    DIM_WORDS,
    HEAD_WORDS,
    MAX_RUN,
    OFFSETS,
    OUT_ROW,
    PER_WORD,
    POINTER,
    WEIGHTS,
)
from trueup.numerics.digest import GENERATORS, MASK, mix, powers
from trueup.numerics.dtypes import DTYPES, bits_from_array, float64_from_array
from trueup.numerics.sketch import places

NAMES = {entry.code: name for name, entry in DTYPES.items()}


def memory(address: int, num_bytes: int) -> NDArray[np.uint8]:
    """Host memory at an address."""
    return np.frombuffer((ctypes.c_uint8 * num_bytes).from_address(address), np.uint8)


def run(
    variant: Variant,
    num_programs: int,
    jobs: torch.Tensor,
    pointer: int,
    row: int,
    rows: torch.Tensor,
    address: Callable[[int], int],
) -> None:
    """One launch; ``address`` tells where the host finds an address of the device."""
    table = rows.numpy().reshape(-1).view(PART_DTYPE)
    for start in [0] if pointer else sorted(set(jobs[:num_programs].tolist())):
        words = [int(word) for word in jobs[start : start + HEAD_WORDS + DIM_WORDS * 16]]
        if pointer:
            words[POINTER], words[OUT_ROW] = pointer, row
        table[words[OUT_ROW]] = part_of(variant, words, address)


@np.errstate(over="ignore", invalid="ignore")
def part_of(variant: Variant, words: list[int], address: Callable[[int], int]) -> np.void:
    """The part of one job."""
    code, digest, sketch, walk = variant
    name = NAMES[code]
    weights = None
    if words[WEIGHTS]:
        per_word = PER_WORD[name] if walk == AS_WORDS else 1
        of_words = memory(address(words[WEIGHTS]), 8 * MAX_RUN // per_word).view(np.uint64)
        within = powers(words[OFFSETS], per_word) if walk == AS_WORDS else np.ones(1, np.uint64)
        weights = (of_words[:, None] * within).ravel()
    offsets = np.arange(MAX_RUN)
    if walk == APART:
        offsets = memory(address(words[OFFSETS]), 8 * MAX_RUN).view(np.int64)
    part: Any = np.zeros((), PART_DTYPE)
    values, hashed = [], 0
    for first, flat, length, factor in _runs(words):
        at = (first + offsets[:length]) * DTYPES[name].itemsize
        raw = memory(address(words[POINTER]), int(at.max()) + DTYPES[name].itemsize)
        items = np.lib.stride_tricks.sliding_window_view(raw, DTYPES[name].itemsize)[at]
        items = np.ascontiguousarray(items).view(DTYPES[name].storage)[:, 0]
        numbers = float64_from_array(items, name)
        values.append(numbers)
        if digest and weights is not None:
            products = mix(bits_from_array(items)) * weights[:length]
            hashed += int(products.sum(dtype=np.uint64)) * factor
        if sketch:
            bucket, sign = places(flat + np.arange(length))
            part["sketch"] += np.bincount(bucket, np.where(np.isfinite(numbers), numbers, 0) * sign, 64)
    whole = np.concatenate(values)
    finite = whole[np.isfinite(whole)]
    part["num_nan"], part["num_zero"] = np.isnan(whole).sum(), (whole == 0).sum()
    part["num_posinf"], part["num_neginf"] = (whole == np.inf).sum(), (whole == -np.inf).sum()
    part["digest"] = hashed & MASK
    part["minimum"], part["maximum"] = finite.min(initial=np.inf), finite.max(initial=-np.inf)
    part["smallest_nonzero"] = np.abs(finite[finite != 0]).min(initial=np.inf)
    part["sum"], part["sum_sq"] = finite.sum(), np.square(finite).sum()
    found: np.void = part
    return found


def _runs(words: list[int]) -> list[tuple[int, int, int, int]]:
    """Memory offset, row-major index, length and digest factor of each run."""
    num_runs, per_line, rows, split, row, stride, flat_step, generator, num_outer, base = words[6:16]
    found = []
    for run in range(num_runs):
        line, at = divmod(run, per_line)
        start = at * rows
        first, flat = start * stride, base + start * flat_step
        factor = pow(GENERATORS[generator], start, MASK + 1)
        for dim in range(num_outer):
            size, step, whole, of = words[HEAD_WORDS + DIM_WORDS * dim :][:DIM_WORDS]
            line, index = divmod(line, size)
            first, flat = first + index * step, flat + index * whole
            factor = factor * pow(GENERATORS[of], index, MASK + 1) & MASK
        found.append((first, flat, min(rows, split - start) * row, factor))
    return found
