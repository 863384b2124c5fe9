"""Summaries by torch operations: queued on the tensor's device, brought to the host once a step."""

from __future__ import annotations

import functools

import numpy as np
import torch

from trueup.adapters.base import Recorder
from trueup.adapters.torch.memory import numpy_of
from trueup.numerics import digest as digests
from trueup.numerics import sketch as sketches
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, HAS_STATISTICS, SKETCH_SIZE

Tensor = torch.Tensor
_FIELDS = ("minimum", "maximum", "mean", "l2_norm", "smallest_nonzero")
_COUNTS = ("numel", "num_nan", "num_posinf", "num_neginf", "num_zero")


class Queue:
    """Rows whose numbers are still on a device."""

    def __init__(self) -> None:
        self._waiting: dict[torch.device, list[tuple[int, Tensor, Tensor, Tensor | None]]] = {}
        self._want = 0

    def add(
        self,
        recorder: Recorder,
        tensor: Tensor,
        dtype: str,
        shape: tuple[int, ...],
        placement: str | None,
        want: int,
    ) -> int:
        """Reserve a row and queue its computation."""
        row = recorder.keep(0, dtype, shape, str(tensor.device), placement)
        self._want = want
        with torch.no_grad():
            detached = tensor.detach()
            statistics, counts = summarise(detached, digest=bool(want & HAS_DIGEST))
            sketch = sketch_of(detached) if want & HAS_SKETCH else None
        self._waiting.setdefault(tensor.device, []).append((row, statistics, counts, sketch))
        return row

    def flush(self, recorder: Recorder) -> None:
        """Fill the rows: one transfer a device and kind."""
        for waiting in self._waiting.values():
            statistics = numpy_of(torch.stack([w[1] for w in waiting]).cpu())
            counts = numpy_of(torch.stack([w[2] for w in waiting]).cpu())
            has_sketch = waiting[0][3] is not None
            sketch = (
                numpy_of(torch.stack([w[3] for w in waiting if w[3] is not None]).cpu())
                if has_sketch
                else None
            )
            for i, (row, *_) in enumerate(waiting):
                view = recorder.view(row)
                for j, name in enumerate(_FIELDS):
                    view[name] = statistics[i, j]
                for j, name in enumerate(_COUNTS):
                    view[name] = counts[i, j]
                view["digest"] = counts[i, 5].view(np.uint64)
                if sketch is not None:
                    view["sketch"] = sketch[i]
                view["flags"] = HAS_STATISTICS | (self._want & HAS_DIGEST) | (HAS_SKETCH if has_sketch else 0)
        self._waiting = {}


def summarise(tensor: Tensor, *, digest: bool) -> tuple[Tensor, Tensor]:
    """Statistics (float64, 5) and counts with the digest (int64, 6), both on the tensor's device.

    No synchronisation: empty and all-nonfinite tensors give NaN through arithmetic, not through branches on
    values.
    """
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    wide = values.reshape(-1).to(torch.float64)
    device = tensor.device
    zero = torch.zeros((), dtype=torch.int64, device=device)
    if wide.numel() == 0:
        empty = torch.full((5,), float("nan"), dtype=torch.float64, device=device)
        return empty, torch.stack([zero] * 6)
    nan, positive, negative = wide.isnan(), wide == float("inf"), wide == float("-inf")
    finite = ~(nan | positive | negative)
    num_finite = finite.sum()
    kept = torch.where(finite, wide, 0.0)
    none = torch.where(num_finite > 0, 0.0, float("nan"))
    magnitude = torch.where(finite & (wide != 0), wide.abs(), float("inf"))
    smallest = magnitude.amin()
    statistics = torch.stack(
        [
            torch.where(finite, wide, float("inf")).amin() + none,
            torch.where(finite, wide, float("-inf")).amax() + none,
            kept.sum() / num_finite,
            kept.square().sum().sqrt() + none,
            torch.where(smallest.isinf(), float("nan"), smallest),
        ]
    )
    counts = torch.stack(
        [
            zero + tensor.numel(),
            nan.sum(),
            positive.sum(),
            negative.sum(),
            (wide == 0).sum(),
            digest_of(tensor) if digest else zero,
        ]
    )
    return statistics, counts


def digest_of(tensor: Tensor) -> Tensor:
    """``numerics.digest.digest`` in int64 arithmetic, which wraps as the definition's modulus does."""
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    total = _mixed(_bits(parts))
    extra = [digests.MAX_DIMS] if parts.ndim > tensor.ndim else []
    for dim in reversed([*range(tensor.ndim), *extra]):
        total = (total * _powers(dim, total.shape[-1], tensor.device)).sum(-1)
    return total


def sketch_of(tensor: Tensor) -> Tensor:
    """``numerics.sketch.sketch`` of a whole tensor (float32, 64); blocks are summed in float64."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    wide = values.reshape(-1)
    wide = wide.to(torch.float64 if wide.dtype is torch.float64 else torch.float32)
    wide = torch.where(wide.isfinite(), wide, 0.0)
    blocks = -(-wide.numel() // sketches.PERIOD)
    wide = torch.nn.functional.pad(wide, (0, blocks * sketches.PERIOD - wide.numel()))
    signs, gather = _sketch_places(blocks, tensor.device)
    folded = (wide.view(blocks, sketches.PERIOD) * signs.to(wide.dtype)).view(blocks, -1, SKETCH_SIZE).sum(1)
    return folded.gather(1, gather).sum(0, dtype=torch.float64).to(torch.float32)


@functools.lru_cache(maxsize=64)
def _sketch_places(blocks: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Signs (blocks, 1024) and the gather that turns each block's buckets (blocks, 64)."""
    starts = np.arange(blocks, dtype=np.int64) * sketches.PERIOD
    bucket, _ = sketches.places(starts)
    sign = np.stack([sketches.places(starts + p)[1] for p in range(sketches.PERIOD)], axis=1)
    turned = (np.arange(SKETCH_SIZE)[None] - bucket[:, None]) % SKETCH_SIZE
    return torch.from_numpy(sign.astype(np.int8)).to(device), torch.from_numpy(turned).to(device)


def _bits(values: Tensor) -> Tensor:
    size = values.element_size()
    if values.dtype is torch.bool:
        return values.to(torch.int64)
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    bits = values.contiguous().view(kind).to(torch.int64)
    return bits if size == 8 else bits & ((1 << (8 * size)) - 1)


def _mixed(bits: Tensor) -> Tensor:
    folded = bits ^ ((bits >> 32) & 0xFFFFFFFF)
    return folded ^ ((folded >> 16) & 0xFFFFFFFFFFFF)


_power_tables: dict[tuple[int, torch.device], Tensor] = {}


def _powers(dim: int, size: int, device: torch.device) -> Tensor:
    """Powers of one dimension's generator, grown as needed and kept on the device."""
    table = _power_tables.get((dim, device))
    if table is None or table.numel() < size:
        length = max(size, 1024)
        table = torch.from_numpy(digests.powers(dim, length).view(np.int64).copy()).to(device)
        _power_tables[dim, device] = table
    return table[:size]
