"""The Triton kernel: statistics, digest and sketch of any number of tensors of one dtype, each read once.

Importing it imports triton. A program walks runs (``plan``) of one tensor and keeps one sum a lane: the order
of every addition is fixed by the tensor's dims alone. The last program of a tensor to arrive adds up what the
others wrote, in their order. All sums are in float64, counts and the digest in integers, extremes are
compared as they are: the result does not depend on how programs are scheduled. There are no float atomics.

Lane ``l`` of a sketch block reads the element that belongs into bucket ``l % 64``: the rotation of the block
is applied to addresses, within 64 elements, and the lane's sum stays in its registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from trueup.numerics.dtypes import DTYPES, REAL_PART

LANES = 1024
"""a sketch block"""
NUM_WARPS = 16


def warps_of(dtype: str, most: int = 4, *, sketch: bool = True) -> int:
    """Warps of a program. ``most`` as for ``blocks_of``: sketches of float64 would spill there."""
    return 8 if dtype == "float64" and most < 4 and sketch else NUM_WARPS


def blocks_of(dtype: str, most: int = 4) -> int:
    """Sketch blocks read at once: as many as fit the registers of 512 threads without spills.

    ``most``: 2 before compute capability 9.
    """
    entry = DTYPES[dtype]
    if entry.kind == "float" and entry.itemsize < 8:
        return most
    return 1 if dtype == "float64" else 2


WORDS = tl.constexpr(74)
HEAD = tl.constexpr(18)
INF32 = tl.constexpr(0x7F800000)
INF64 = tl.constexpr(0x7FF0000000000000)
MOST32 = tl.constexpr(0x7FFFFFFF)
MOST64 = tl.constexpr(0x7FFFFFFFFFFFFFFF)


def code_of(dtype: str) -> int:
    """``CODE`` of a dtype: that of the C kernel; of complex ones, that of their parts."""
    return DTYPES[REAL_PART.get(dtype, dtype)].code


@triton.jit
def _power(powers, generator, exponent):
    """One generator to a power below 2^40, from tables of 2^10 powers each."""
    table = powers + generator * 4096
    low = tl.load(table + (exponent & 1023)) * tl.load(table + 1024 + ((exponent >> 10) & 1023))
    high = tl.load(table + 2048 + ((exponent >> 20) & 1023)) * tl.load(
        table + 3072 + ((exponent >> 30) & 1023)
    )
    return low * high


@triton.jit
def _raw(address, at, CODE: tl.constexpr):
    """Bits of elements as integers of their size."""
    if CODE == 0 or CODE == 11 or CODE == 15:
        return tl.load(address.to(tl.pointer_type(tl.int64)) + at)
    elif CODE == 1 or CODE == 10 or CODE == 14:
        return tl.load(address.to(tl.pointer_type(tl.int32)) + at)
    elif CODE == 2 or CODE == 3 or CODE == 9 or CODE == 13:
        return tl.load(address.to(tl.pointer_type(tl.int16)) + at)
    else:
        return tl.load(address.to(tl.pointer_type(tl.int8)) + at)


@triton.jit
def _masked(address, at, ok, CODE: tl.constexpr):
    """The same where ``ok``; elsewhere NaN, or 0 in dtypes without."""
    if CODE == 0:
        return tl.load(address.to(tl.pointer_type(tl.int64)) + at, mask=ok, other=0x7FF8000000000000)
    elif CODE == 1:
        return tl.load(address.to(tl.pointer_type(tl.int32)) + at, mask=ok, other=0x7FC00000)
    elif CODE == 2 or CODE == 3:
        return tl.load(address.to(tl.pointer_type(tl.int16)) + at, mask=ok, other=0x7FFF)
    elif CODE == 4 or CODE == 5:
        return tl.load(address.to(tl.pointer_type(tl.int8)) + at, mask=ok, other=0x7F)
    elif CODE == 6 or CODE == 7:
        return tl.load(address.to(tl.pointer_type(tl.int8)) + at, mask=ok, other=-128)
    elif CODE == 11 or CODE == 15:
        return tl.load(address.to(tl.pointer_type(tl.int64)) + at, mask=ok, other=0)
    elif CODE == 10 or CODE == 14:
        return tl.load(address.to(tl.pointer_type(tl.int32)) + at, mask=ok, other=0)
    elif CODE == 9 or CODE == 13:
        return tl.load(address.to(tl.pointer_type(tl.int16)) + at, mask=ok, other=0)
    else:
        return tl.load(address.to(tl.pointer_type(tl.int8)) + at, mask=ok, other=0)


@triton.jit
def _count(marks):
    return tl.sum(tl.sum(tl.sum(marks.to(tl.int32), axis=0), axis=0), axis=0)


@triton.jit
def _total(lanes):
    return tl.sum(tl.sum(lanes, axis=0), axis=0)


@triton.jit
def _least(lanes):
    return tl.min(tl.min(lanes, axis=0), axis=0)


@triton.jit
def _value(raw, float8, CODE: tl.constexpr):
    """Elements as numbers: float32 where that holds them, else float64."""
    if CODE == 0:
        return raw.to(tl.float64, bitcast=True)
    elif CODE == 1:
        return raw.to(tl.float32, bitcast=True)
    elif CODE == 2:
        return raw.to(tl.float16, bitcast=True).to(tl.float32)
    elif CODE == 3:
        return (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif CODE < 8:
        return tl.load(float8 + (CODE - 4) * 256 + (raw.to(tl.int32) & 255))
    elif CODE == 8 or CODE == 9:
        return raw.to(tl.float32)
    elif CODE == 10 or CODE == 11:
        return raw.to(tl.float64)
    elif CODE == 12:
        return (raw.to(tl.int32) & 255).to(tl.float32)
    elif CODE == 13:
        return (raw.to(tl.int32) & 65535).to(tl.float32)
    elif CODE == 14:
        return (raw.to(tl.int64) & 0xFFFFFFFF).to(tl.float64)
    elif CODE == 15:
        high = ((raw >> 32) & 0xFFFFFFFF).to(tl.float64)
        return high * 4294967296.0 + (raw & 0xFFFFFFFF).to(tl.float64)
    else:
        return (raw != 0).to(tl.float32)


@triton.jit
def _mixed(raw, CODE: tl.constexpr):
    """``numerics.digest.mix`` of the bits."""
    if CODE == 0 or CODE == 11 or CODE == 15:
        folded = raw ^ ((raw >> 32) & 0xFFFFFFFF)
        return folded ^ ((folded >> 16) & 0xFFFFFFFFFFFF)
    elif CODE == 1 or CODE == 10 or CODE == 14:
        return (raw ^ ((raw >> 16) & 0xFFFF)).to(tl.int64) & 0xFFFFFFFF
    elif CODE == 2 or CODE == 3 or CODE == 9 or CODE == 13:
        return raw.to(tl.int64) & 0xFFFF
    else:
        return raw.to(tl.int64) & 0xFF


# In one piece: one program of a device; what it calls would be put in line all the same.
@triton.jit
def summarise(
    job_of,
    jobs,
    rows,
    partials,
    counters,
    powers,
    blocks,
    signs,
    float8,
    CODE: tl.constexpr,
    DIGEST: tl.constexpr,
    SKETCH: tl.constexpr,
    OFFSETS: tl.constexpr,
    BLOCKS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Summaries of one launch.

    Args:
        job_of: int64, for each program where its job starts in ``jobs``.
        jobs: int64, see ``plan``.
        rows: int64 (rows, 74), where summaries go.
        partials: int64 (programs, 74), of tensors that several programs share.
        counters: int32, one a tensor, 0 before and after.
        powers: int64 (17, 4, 1024).
        blocks: int16, of each sketch block its rotation and, times 64, the start of its signs in units of 16.
        signs: int32 (3072,), the sign bit of a float64's high half or 0.
        float8: float32 (4, 256), what bytes mean.
        CODE: of the dtype.
        DIGEST: whether it is wanted.
        SKETCH: whether it is wanted.
        OFFSETS: whether the elements of a run lie apart.
        BLOCKS: sketch blocks read at once.
        LANES: elements of a sketch block.
    """
    program = tl.program_id(0)
    job = jobs + tl.load(job_of + program)
    address = tl.load(job)
    local = program - tl.load(job + 2)
    num_programs = tl.load(job + 3)
    num_runs = tl.load(job + 6)
    per_line = tl.load(job + 7)
    rows_of_run = tl.load(job + 8)
    split_size = tl.load(job + 9)
    row_size = tl.load(job + 10)
    split_stride = tl.load(job + 11)
    split_flat = tl.load(job + 12)
    split_generator = tl.load(job + 13)
    num_outer = tl.load(job + 14)
    first_flat = tl.load(job + 15)
    weights = tl.load(job + 16).to(tl.pointer_type(tl.int64))
    offsets = tl.load(job + 17).to(tl.pointer_type(tl.int64))

    WIDE: tl.constexpr = CODE == 0 or CODE == 10 or CODE == 11 or CODE == 14 or CODE == 15
    FLOAT: tl.constexpr = CODE < 8
    BYTES: tl.constexpr = (
        8
        if CODE == 0 or CODE == 11 or CODE == 15
        else (
            4
            if CODE == 1 or CODE == 10 or CODE == 14
            else (2 if CODE == 2 or CODE == 3 or CODE == 9 or CODE == 13 else 1)
        )
    )
    ROWS: tl.constexpr = LANES // 64
    column = tl.arange(0, 64)[None, None, :]
    across = tl.arange(0, ROWS)[None, :, None] * 64
    number = tl.arange(0, BLOCKS)[:, None, None]
    zeros = tl.zeros([ROWS, 64], tl.int32)
    total = tl.zeros([ROWS, 64], tl.float64)
    squares = tl.zeros([ROWS, 64], tl.float64)
    if DIGEST:
        digest = tl.zeros([ROWS, 64], tl.int64)
    if SKETCH:
        sketch = tl.zeros([ROWS, 64], tl.float64)
    if WIDE:
        low = tl.full([ROWS, 64], float("inf"), tl.float64)
        high = tl.full([ROWS, 64], float("-inf"), tl.float64)
    else:
        low = tl.full([ROWS, 64], float("inf"), tl.float32)
        high = tl.full([ROWS, 64], float("-inf"), tl.float32)
    if CODE == 0:
        small = tl.full([ROWS, 64], MOST64, tl.int64).to(tl.uint64, bitcast=True)
    elif FLOAT:
        small = tl.full([ROWS, 64], MOST32, tl.int32).to(tl.uint32, bitcast=True)
    else:
        small = low
    num_nan = tl.full([], 0, tl.int64)
    num_positive = tl.full([], 0, tl.int64)
    num_negative = tl.full([], 0, tl.int64)

    for run in range(local, num_runs, num_programs):
        line = run // per_line
        start = (run - line * per_line) * rows_of_run
        length = (tl.minimum(start + rows_of_run, split_size) - start) * row_size
        memory = start * split_stride
        flat = first_flat + start * split_flat
        if DIGEST:
            weight = _power(powers, split_generator, start)
        for dim in range(num_outer):
            at = job + HEAD + dim * 4
            size = tl.load(at)
            index = line % size
            line = line // size
            memory += index * tl.load(at + 1)
            flat += index * tl.load(at + 2)
            if DIGEST:
                weight *= _power(powers, tl.load(at + 3), index)
        if SKETCH:
            front = flat & (LANES - 1)
        else:
            front = flat & 0
        num_blocks = (front + length + LANES - 1) // LANES
        for block in range(0, num_blocks, BLOCKS):
            if SKETCH:
                there = block + number < num_blocks
                packed = tl.load(blocks + flat // LANES + block + number, mask=there, other=0).to(tl.int32)
                place = (column - packed) & 63
                sign_at = (packed >> 6) * 16 + place
            else:
                place = column
            first = ((block + number) * LANES - front).to(tl.int32) + place
            begin = block * LANES - front
            if (begin >= 0) & (begin + BLOCKS * LANES <= length):
                if OFFSETS:
                    raw = _raw(address + memory * BYTES, tl.load(offsets + first + across), CODE)
                else:
                    raw = _raw(address + memory * BYTES + first * BYTES, across, CODE)
                if DIGEST:
                    weight_of = tl.load(weights + first + across)
            else:
                ok = (first + across >= 0) & (first + across < length.to(tl.int32))
                if OFFSETS:
                    apart = tl.load(offsets + first + across, mask=ok, other=0)
                    raw = _masked(address + memory * BYTES, apart, ok, CODE)
                else:
                    raw = _masked(address + memory * BYTES + first * BYTES, across, ok, CODE)
                if DIGEST:
                    weight_of = tl.load(weights + first + across, mask=ok, other=0)
            if DIGEST:
                digest += tl.sum(_mixed(raw, CODE) * weight_of, axis=0) * weight
            value = _value(raw, float8, CODE)
            if FLOAT:
                if CODE == 0:
                    size = raw & MOST64
                    lacking = (size - 1).to(tl.uint64, bitcast=True)
                    special = tl.max(tl.max(tl.max(size, axis=0), axis=0), axis=0) >= INF64
                else:
                    size = value.to(tl.int32, bitcast=True) & MOST32
                    lacking = (size - 1).to(tl.uint32, bitcast=True)
                    special = tl.max(tl.max(tl.max(size, axis=0), axis=0), axis=0) >= INF32
                zeros += tl.sum((size == 0).to(tl.int32), axis=0)
                small = tl.minimum(small, tl.min(lacking, axis=0))
                if special:
                    ok = (first + across >= 0) & (first + across < length.to(tl.int32))
                    num_nan += _count((value != value) & ok)
                    num_positive += _count(value == float("inf"))
                    num_negative += _count(value == float("-inf"))
                    finite = tl.abs(value) < float("inf")
                    low = tl.minimum(low, tl.min(tl.where(finite, value, float("inf")), axis=0))
                    high = tl.maximum(high, tl.max(tl.where(finite, value, float("-inf")), axis=0))
                    value = tl.where(finite, value, 0.0)
                else:
                    low = tl.minimum(low, tl.min(value, axis=0))
                    high = tl.maximum(high, tl.max(value, axis=0))
            else:
                ok = (first + across >= 0) & (first + across < length.to(tl.int32))
                zeros += tl.sum(((raw == 0) & ok).to(tl.int32), axis=0)
                small = tl.minimum(small, tl.min(tl.where(raw == 0, float("inf"), tl.abs(value)), axis=0))
                low = tl.minimum(low, tl.min(tl.where(ok, value, float("inf")), axis=0))
                high = tl.maximum(high, tl.max(tl.where(ok, value, float("-inf")), axis=0))
            kept = value.to(tl.float64)
            total += tl.sum(kept, axis=0)
            squares += tl.sum(kept * kept, axis=0)
            if SKETCH:
                sign = tl.load(signs + sign_at + across).to(tl.int64) << 32
                signed = (kept.to(tl.int64, bitcast=True) ^ sign).to(tl.float64, bitcast=True)
                sketch += tl.sum(signed, axis=0)

    if CODE == 0:
        least = _least(small).to(tl.int64, bitcast=True)
        smallest = tl.where(least >= INF64 - 1, INF64, least + 1).to(tl.float64, bitcast=True)
    elif FLOAT:
        least = _least(small).to(tl.int32, bitcast=True)
        smallest = tl.where(least >= INF32 - 1, INF32, least + 1).to(tl.float32, bitcast=True).to(tl.float64)
    else:
        smallest = _least(small).to(tl.float64)
    out = rows + tl.load(job + 1) * WORDS
    shared = num_programs > 1
    base = partials + tl.load(job + 4) * WORDS
    if shared:
        out = base + local * WORDS
    numbers = out.to(tl.pointer_type(tl.float64))
    tl.store(out, num_nan)
    tl.store(out + 1, num_positive)
    tl.store(out + 2, num_negative)
    tl.store(out + 3, _total(zeros.to(tl.int64)))
    if DIGEST:
        tl.store(out + 4, _total(digest))
    else:
        tl.store(out + 4, num_nan * 0)
    tl.store(numbers + 5, _least(low).to(tl.float64))
    tl.store(numbers + 6, tl.max(tl.max(high, axis=0), axis=0).to(tl.float64))
    tl.store(numbers + 7, smallest)
    tl.store(numbers + 8, _total(total))
    tl.store(numbers + 9, _total(squares))
    bucket = tl.arange(0, 64)
    if SKETCH:
        summed = tl.sum(sketch, axis=0)
    else:
        summed = tl.zeros([64], tl.float64)
    tl.store(numbers + 10 + bucket, summed)
    if shared:
        tl.debug_barrier()
        counter = counters + tl.load(job + 5)
        arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
        if arrived == num_programs - 1:
            tl.debug_barrier()
            tl.store(counter, 0)
            _combine(base, num_programs, rows + tl.load(job + 1) * WORDS)


@triton.jit
def _combine(partials, num_programs, out):
    """Add up what the programs of a tensor wrote, in their order; caches that others do not write are passed
    by."""
    many = tl.arange(0, 64)
    numbers = out.to(tl.pointer_type(tl.float64))
    for word in range(5):
        count = tl.zeros([64], tl.int64)
        for first in range(0, num_programs, 64):
            ok = first + many < num_programs
            count += tl.load(partials + (first + many) * WORDS + word, mask=ok, other=0, cache_modifier=".cg")
        tl.store(out + word, tl.sum(count, axis=0))
    source = partials.to(tl.pointer_type(tl.float64))
    low = tl.full([64], float("inf"), tl.float64)
    high = tl.full([64], float("-inf"), tl.float64)
    small = low
    total = tl.zeros([64], tl.float64)
    squares = tl.zeros([64], tl.float64)
    sketch = tl.zeros([64], tl.float64)
    for first in range(0, num_programs, 64):
        ok = first + many < num_programs
        at = source + (first + many) * WORDS
        low = tl.minimum(low, tl.load(at + 5, mask=ok, other=float("inf"), cache_modifier=".cg"))
        high = tl.maximum(high, tl.load(at + 6, mask=ok, other=float("-inf"), cache_modifier=".cg"))
        small = tl.minimum(small, tl.load(at + 7, mask=ok, other=float("inf"), cache_modifier=".cg"))
        total += tl.load(at + 8, mask=ok, other=0, cache_modifier=".cg")
        squares += tl.load(at + 9, mask=ok, other=0, cache_modifier=".cg")
        tile = at[:, None] + 10 + tl.arange(0, 64)[None, :]
        sketch += tl.sum(tl.load(tile, mask=ok[:, None], other=0, cache_modifier=".cg"), axis=0)
    tl.store(numbers + 5, tl.min(low, axis=0))
    tl.store(numbers + 6, tl.max(high, axis=0))
    tl.store(numbers + 7, tl.min(small, axis=0))
    tl.store(numbers + 8, tl.sum(total, axis=0))
    tl.store(numbers + 9, tl.sum(squares, axis=0))
    tl.store(numbers + 10 + many, sketch)
