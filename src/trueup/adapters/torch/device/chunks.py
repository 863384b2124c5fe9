"""Summaries by torch operations, box by box: where no Triton kernel can run on a device.

What is left in device memory stays below 64 MB whatever the tensor. Sums are in float64; a device without it
(MPS) sums fixed-point int64 numbers, scaled by the largest magnitude of the box: exact to 2^-40 of it,
and the same in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trueup.adapters.placing import TensorPlace
from trueup.adapters.torch.device.boxes import MAX_BOX, ElementRuns, boxes_of, runs_of
from trueup.adapters.torch.device.constants import Constants
from trueup.numerics import sketch as sketches
from trueup.numerics.digest import MAX_DIMS
from trueup.numerics.dtypes import DTYPES, REAL_PART, Dtype
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH, SKETCH_SIZE

FIXED = 1 << 40
"""one, in fixed point: a box's sum of 2^20 magnitudes of at most 16 stays within int64"""
TOP = -(1 << 63)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_INF = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxNumbers:
    """Of one box, still on the device.

    Attributes:
        integers: int64: how many are finite, +inf, -inf, zero or not finite; the digest in the box; without
            float64 then minimum, maximum and smallest magnitude of integers, sum and sum of squares in fixed
            point, and the sketch.
        floats: minimum, maximum, smallest magnitude; with float64 then sum, sum of squares and the sketch;
            without it the scale of the fixed-point numbers.
        digest_factor: what the digest is multiplied by in the whole.
        dtype: of the real elements.
        num_real: elements.
        sketch_only: the rest was counted in another box.
    """

    integers: Tensor
    floats: Tensor
    digest_factor: int
    dtype: str
    num_real: int
    sketch_only: bool


class Chunks:
    """The torch operations for the tensors of one device."""

    def __init__(self, device: torch.device, *, wide: bool | None = None) -> None:
        """``wide``: whether sums are in float64; by default, where the device has it."""
        self.wide = has_float64(device) if wide is None else wide
        self._values = torch.float64 if self.wide else torch.float32
        self._constants = Constants(device, self._values)
        self._zero = torch.zeros((), dtype=torch.int64, device=device)
        kind = torch.float64 if self.wide else torch.int64
        self._no_sketch = torch.zeros(SKETCH_SIZE, dtype=kind, device=device)

    def numbers_of(self, tensor: Tensor, name: str, want: int, place: TensorPlace | None) -> list[BoxNumbers]:
        """The boxes of one tensor, in order; nothing is waited for.

        Args:
            tensor: strided, outside any graph.
            name: of its dtype.
            want: HAS_* bits.
            place: where the sketch is taken, if it is part of a larger tensor.
        """
        entry, shape = DTYPES[name], tuple(tensor.shape)
        if place is None or not want & HAS_SKETCH:
            return self._boxes(tensor, entry, want, shape, (0,) * len(shape))
        found = self._boxes(tensor, entry, want, None, (0,) * len(shape))
        local = tensor.reshape(place.local)
        for at, offset in place.boxes:
            found += self._boxes(local[at], entry, HAS_SKETCH, place.whole, offset, sketch_only=True)
        return found

    def _boxes(
        self,
        tensor: Tensor,
        entry: Dtype,
        want: int,
        whole: Sequence[int] | None,
        offset: Sequence[int],
        *,
        sketch_only: bool = False,
    ) -> list[BoxNumbers]:
        """``whole``: the shape that the sketch counts in; None: no sketch of these boxes."""
        limit = MAX_BOX if whole is None else MAX_BOX // _spread(runs_of(tensor.shape, whole, offset))
        found = []
        for box in boxes_of(tensor.shape, max(1, limit // (2 if entry.kind == "complex" else 1))):
            runs = None
            if whole is not None and want & HAS_SKETCH:
                start = tuple(a + b for a, b in zip(offset, box.start, strict=True))
                pair = (2,) if entry.kind == "complex" else ()
                runs = runs_of((*box.size, *pair), (*whole, *pair), (*start, *(0 for _ in pair)))
            piece = _piece(tensor, box.start, box.size)
            part, generators = entry, list(range(piece.ndim))
            if entry.kind == "complex":
                piece, part = torch.view_as_real(piece), DTYPES[REAL_PART[entry.name]]
                generators.append(MAX_DIMS)
            digest = self._digest(piece, part, generators) if want & HAS_DIGEST else self._zero
            summed = self._wide if self.wide else self._narrow
            integers, floats = summed(piece.reshape(-1), part, digest, runs, sketch=bool(want & HAS_SKETCH))
            found.append(
                BoxNumbers(
                    integers=integers,
                    floats=floats,
                    digest_factor=box.digest_factor,
                    dtype=part.name,
                    num_real=piece.numel(),
                    sketch_only=sketch_only,
                )
            )
        return found

    # -- sums ------------------------------------------

    def _wide(
        self, raw: Tensor, entry: Dtype, digest: Tensor, runs: ElementRuns | None, *, sketch: bool
    ) -> tuple[Tensor, Tensor]:
        """All in float64, as the definition has it."""
        counts, extremes, kept = self._looked_at(self._decoded(raw, entry), entry)
        numbers = torch.stack([*extremes, kept.sum(), (kept * kept).sum()])
        if sketch:
            summed = self._no_sketch if runs is None else self._folded(kept, runs).sum(0)
            numbers = torch.cat([numbers, summed])
        return torch.stack([*counts, digest]), numbers

    def _narrow(
        self, raw: Tensor, entry: Dtype, digest: Tensor, runs: ElementRuns | None, *, sketch: bool
    ) -> tuple[Tensor, Tensor]:
        """Without float64."""
        counts, extremes, kept = self._looked_at(self._decoded(raw, entry), entry)
        scale = torch.maximum(kept.amax(), -kept.amin())
        unit = kept / torch.where(scale > 0, scale, 1.0)
        sums = [_fixed(unit).sum(), _fixed(unit * unit).sum()]
        exact = [self._zero] * 3
        if entry.kind != "float":
            exact = _whole_extremes(_int64(raw, entry), entry)
        integers = torch.stack([*counts, digest, *exact, *sums])
        if sketch:
            summed = self._no_sketch if runs is None else _fixed(self._folded(unit, runs)).sum(0)
            integers = torch.cat([integers, summed])
        return integers, torch.stack([*extremes, scale])

    def _looked_at(self, values: Tensor, entry: Dtype) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Counts and extremes as in ``BoxNumbers`` (infinite where no element is finite), and the values with
        0
        for those that are not."""
        magnitude = values.abs()
        if entry.kind != "float":
            zero = values == 0
            counts = [self._zero + values.numel(), self._zero, self._zero, zero.sum()]
            small = torch.where(zero, _INF, magnitude).amin()
            return counts, [values.amin(), values.amax(), small], values
        finite = magnitude < _INF
        kept = torch.where(finite, values, 0.0)
        zero = kept == 0
        infinite = [(values == _INF).sum(), (values == -_INF).sum()]
        low, high = torch.where(finite, values, _INF).amin(), torch.where(finite, values, -_INF).amax()
        small = torch.where(zero, _INF, magnitude).amin()
        return [finite.sum(), *infinite, zero.sum()], [low, high, small], kept

    def _decoded(self, raw: Tensor, entry: Dtype) -> Tensor:
        if entry.name.startswith("float8"):
            return self._constants.float8(entry.name)[raw.view(torch.uint8).to(torch.int64)]
        if entry.kind == "bool":
            return (raw.view(torch.uint8) != 0).to(self._values)
        if entry.kind == "uint" and entry.itemsize > 1:
            whole = _int64(raw, entry)
            if entry.itemsize < 8:
                return whole.to(self._values)
            halves = (whole >> 32) & 0xFFFFFFFF, whole & 0xFFFFFFFF
            return halves[0].to(self._values) * 2.0**32 + halves[1].to(self._values)
        return raw.to(self._values)

    def _digest(self, real: Tensor, entry: Dtype, generators: list[int]) -> Tensor:
        """``numerics.digest.digest`` in int64 arithmetic, which wraps as the definition's modulus does."""
        bits = _int64(real, DTYPES[f"uint{8 * real.element_size()}"])
        if real.element_size() == 8:
            bits = bits ^ ((bits >> 32) & 0xFFFFFFFF)
            bits = bits ^ ((bits >> 16) & 0xFFFFFFFFFFFF)
        elif real.element_size() == 4:
            bits = bits ^ (bits >> 16)
        sizes = [(generator, n) for generator, n in zip(generators, real.shape, strict=True) if n > 1]
        total = bits.reshape([n for _, n in sizes])
        for generator, n in reversed(sizes):
            total = (total * self._constants.powers(generator, n)).sum(-1)
        return total

    def _folded(self, values: Tensor, runs: ElementRuns) -> Tensor:
        """What each sketch block adds to each bucket, (blocks, 64)."""
        period = sketches.PERIOD
        first = runs.first // period
        if not runs.steps:
            front = runs.first % period
            num = -(-(front + runs.length) // period)
            padded = torch.nn.functional.pad(values, (front, num * period - front - runs.length))
            windows, turns = self._constants.blocks(first, first + num)
        else:
            starts = self._starts(runs)
            num = (runs.length + 2 * period - 2) // period
            padded = values.new_zeros(starts.numel(), num * period)
            at = (starts % period)[:, None] + torch.arange(runs.length, device=values.device)
            padded.scatter_(1, at, values.view(starts.numel(), runs.length))
            rows = (starts // period - first)[:, None] + torch.arange(num, device=values.device)
            windows, turns = self._constants.blocks(first, runs.last // period + num)
            windows, turns = windows[rows.reshape(-1)], turns[rows.reshape(-1)]
        signed = padded.view(-1, period) * self._constants.sign_windows[windows]
        buckets = (self._constants.buckets - turns[:, None]) & (SKETCH_SIZE - 1)
        return signed.view(len(signed), -1, SKETCH_SIZE).sum(1).gather(1, buckets)

    def _starts(self, runs: ElementRuns) -> Tensor:
        device = self._zero.device
        starts = torch.full((1,), runs.first, dtype=torch.int64, device=device)
        for count, step in runs.steps:
            starts = (starts[:, None] + torch.arange(count, device=device) * step).reshape(-1)
        return starts


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def _spread(runs: ElementRuns) -> int:
    """How many times more elements a box has once its rows lie in sketch blocks."""
    if not runs.steps:
        return 1
    return math.ceil(
        (runs.length + 2 * sketches.PERIOD - 2) // sketches.PERIOD * sketches.PERIOD / runs.length
    )


def _piece(tensor: Tensor, start: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
    for dim, (first, count) in enumerate(zip(start, size, strict=True)):
        if count != tensor.shape[dim]:
            tensor = tensor.narrow(dim, first, count)
    return tensor.resolve_conj().resolve_neg().contiguous()


def _int64(raw: Tensor, entry: Dtype) -> Tensor:
    """Integers as int64; unsigned 64-bit ones wrap. Any dtype's bits, taken as unsigned integers."""
    if entry.kind == "int":
        return raw.to(torch.int64)
    size = raw.element_size()
    bits = raw.view(_INTEGERS[size]).to(torch.int64)
    if entry.kind == "bool":
        return (bits != 0).to(torch.int64)
    return bits if size in (1, 8) else bits & ((1 << (8 * size)) - 1)


def _whole_extremes(whole: Tensor, entry: Dtype) -> list[Tensor]:
    """Minimum, maximum, and the smallest nonzero magnitude negated; unsigned 64-bit less 2^63 all three."""
    if entry.name == "uint64":
        ordered = whole ^ TOP
        return [ordered.amin(), ordered.amax(), torch.where(whole == 0, -(TOP + 1), ordered).amin()]
    return [whole.amin(), whole.amax(), torch.where(whole == 0, TOP, -whole.abs()).amax()]


def _fixed(unit: Tensor) -> Tensor:
    return (unit * float(FIXED)).round().to(torch.int64)
