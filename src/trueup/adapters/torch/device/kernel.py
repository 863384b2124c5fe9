"""The Triton kernel: statistics, digest and sketch of any number of tensors of one dtype, each read once.

Importing it imports triton. A program walks runs (``plan``) of one tensor and keeps one sum a lane: the order
of every addition is fixed by the tensor's dims alone. The last program of a tensor to arrive adds up what the
others wrote, in their order. All sums are in float64, counts and the digest in integers, extremes are
compared as they are: the result does not depend on how programs are scheduled. There are no float atomics.

Lane ``l`` of a sketch block reads the element that belongs into bucket ``l % 64``: the rotation of the block
is applied to addresses, within 64 elements, and the lane's sum stays in its registers. Tiles have one dim,
and nothing but the sums of a program crosses lanes: compilers of any version keep a lane's numbers in one
thread, and neighbours beside each other (of tiles of two dims they may not, where rotated addresses tell them
nothing). What is not finite is left out lane by lane; a run that has any is read again to count
which, from the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from trueup.adapters.torch.device.plan import AS_WORDS
from trueup.adapters.torch.device.words import is_rare, read_again, tile_of_words, turned
from trueup.numerics.dtypes import DTYPES, REAL_PART

LANES = tl.constexpr(1024)
"""a sketch block"""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a variant is compiled: ``TILE`` and ``STEP`` of the kernel, warps of a program, and the most
    registers of a thread, where the target can be told."""

    tile: int
    step: int
    num_warps: int
    max_registers: int | None
    pairs: bool
    """``PAIRS`` where the target can"""


def shape_of(code: int, *, digest: bool, sketch: bool, walk: int) -> Shape:
    """The fastest on an H100 (of words) and an H200 (of sums of a quarter of a block's lanes)."""
    if walk != AS_WORDS:
        warps = 8 if sketch else 4 if digest else 2
        return Shape(tile=1, step=1, num_warps=warps, max_registers=None, pairs=False)
    if code == DTYPES["float32"].code:
        return Shape(tile=1, step=8, num_warps=1, max_registers=104 if sketch else 80, pairs=False)
    return Shape(tile=2, step=8, num_warps=1, max_registers=128 if sketch else 96, pairs=True)


WORDS = tl.constexpr(74)
HEAD = tl.constexpr(18)
INF32 = tl.constexpr(0x7F800000)
INF64 = tl.constexpr(0x7FF0000000000000)
MOST32 = tl.constexpr(0x7FFFFFFF)
MOST64 = tl.constexpr(0x7FFFFFFFFFFFFFFF)
FAMILY = tl.constexpr(32)
"""programs of a tensor whose parts are added up by the last of them, before all families' are"""
AGAIN = tl.constexpr(1024)
"""elements that are counted again at once"""


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
def _elements(address, CODE: tl.constexpr):
    """A pointer to elements as integers of their size."""
    if CODE == 0 or CODE == 11 or CODE == 15:
        return address.to(tl.pointer_type(tl.int64))
    elif CODE == 1 or CODE == 10 or CODE == 14:
        return address.to(tl.pointer_type(tl.int32))
    elif CODE == 2 or CODE == 3 or CODE == 9 or CODE == 13:
        return address.to(tl.pointer_type(tl.int16))
    else:
        return address.to(tl.pointer_type(tl.int8))


@triton.jit
def _masked(at, ok, CODE: tl.constexpr):
    """Bits of elements where ``ok``; elsewhere NaN, or 0 in dtypes without."""
    if CODE == 0:
        return tl.load(at, mask=ok, other=0x7FF8000000000000)
    elif CODE == 1:
        return tl.load(at, mask=ok, other=0x7FC00000)
    elif CODE == 2 or CODE == 3:
        return tl.load(at, mask=ok, other=0x7FFF)
    elif CODE == 4 or CODE == 5:
        return tl.load(at, mask=ok, other=0x7F)
    elif CODE == 6 or CODE == 7:
        return tl.load(at, mask=ok, other=-128)
    else:
        return tl.load(at, mask=ok, other=0)


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


@triton.jit
def _with_floats(raw, value, ok, zeros, small, most, low, high, CODE: tl.constexpr, MASKED: tl.constexpr):
    """Counts and extremes after more floats, and these with 0 for what is not finite; NaN stands for what is
    not there."""
    if CODE == 0:
        size = raw & MOST64
        lacking = (size - 1).to(tl.uint64, bitcast=True)
        finite = size < INF64
    else:
        size = value.to(tl.int32, bitcast=True) & MOST32
        lacking = (size - 1).to(tl.uint32, bitcast=True)
        finite = size < INF32
    zeros += (size == 0).to(tl.int32)
    small = tl.minimum(small, lacking)
    known = tl.where(finite, value, float("nan"))
    low = tl.minimum(low, known)
    high = tl.maximum(high, known)
    if MASKED:
        size = tl.where(ok, size, 0)
    return tl.where(finite, value, 0.0), zeros, small, tl.maximum(most, size), low, high


@triton.jit
def _with_integers(raw, value, ok, zeros, small, low, high, MASKED: tl.constexpr):
    """Counts and extremes after more integers or booleans; 0 stands for what is not there."""
    small = tl.minimum(small, tl.where(raw == 0, float("inf"), tl.abs(value)))
    if MASKED:
        zeros += ((raw == 0) & ok).to(tl.int32)
        low = tl.minimum(low, tl.where(ok, value, float("inf")))
        high = tl.maximum(high, tl.where(ok, value, float("-inf")))
    else:
        zeros += (raw == 0).to(tl.int32)
        low = tl.minimum(low, value)
        high = tl.maximum(high, value)
    return zeros, small, low, high


@triton.jit
def _counted(elements, offsets, float8, length, at, CODE: tl.constexpr, OFFSETS: tl.constexpr):
    """NaN, infinities and negative infinities of a run, read again."""
    num_nan = tl.full([], 0, tl.int64)
    num_positive = tl.full([], 0, tl.int64)
    num_negative = tl.full([], 0, tl.int64)
    for first in range(0, length, AGAIN):
        ok = first + at < length
        if OFFSETS:
            raw = _masked(elements + tl.load(offsets + first + at, mask=ok, other=0), ok, CODE)
        else:
            raw = _masked(elements + first + at, ok, CODE)
        value = _value(raw, float8, CODE)
        num_nan += tl.sum(((value != value) & ok).to(tl.int32), axis=0)
        num_positive += tl.sum((value == float("inf")).to(tl.int32), axis=0)
        num_negative += tl.sum((value == float("-inf")).to(tl.int32), axis=0)
    return num_nan, num_positive, num_negative


@triton.jit
def _loaded_block(elements, at, offset_at, CODE: tl.constexpr, GROUP: tl.constexpr, OFFSETS: tl.constexpr):
    """Bits of the four tiles of a block that is full."""
    if OFFSETS:
        raw0 = tl.load(elements + tl.load(offset_at))
        raw1 = tl.load(elements + tl.load(offset_at + GROUP))
        raw2 = tl.load(elements + tl.load(offset_at + 2 * GROUP))
        raw3 = tl.load(elements + tl.load(offset_at + 3 * GROUP))
    else:
        raw0 = tl.load(at)
        raw1 = tl.load(at + GROUP)
        raw2 = tl.load(at + 2 * GROUP)
        raw3 = tl.load(at + 3 * GROUP)
    return raw0, raw1, raw2, raw3


@triton.jit
def _after_tile(
    raw, weight_at, sign_at, ok, float8,
    zeros, small, most, low, high, total, squares, digest, sketch,
    CODE: tl.constexpr, DIGEST: tl.constexpr, SKETCH: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """All sums after one tile."""
    if DIGEST:
        if MASKED:
            digest += _mixed(raw, CODE) * tl.load(weight_at, mask=ok, other=0)
        else:
            digest += _mixed(raw, CODE) * tl.load(weight_at)
    value = _value(raw, float8, CODE)
    if CODE < 8:
        value, zeros, small, most, low, high = _with_floats(
            raw, value, ok, zeros, small, most, low, high, CODE, MASKED
        )
    else:
        zeros, small, low, high = _with_integers(raw, value, ok, zeros, small, low, high, MASKED)
    kept = value.to(tl.float64)
    total += kept
    squares += kept * kept
    if SKETCH:
        sketch += kept * tl.load(sign_at)
    return zeros, small, most, low, high, total, squares, digest, sketch


@triton.jit
def _over_blocks(sums, TILE: tl.constexpr, PER_ROW: tl.constexpr):
    """Of lanes that have the same buckets."""
    return tl.sum(tl.reshape(sums, [TILE, PER_ROW]), axis=0)


@triton.jit
def _add_to(at, numbers):
    """To what this program has written there."""
    tl.store(at, tl.load(at) + numbers)


# In one piece: one program of a device; what it calls would be put in line all the same.
@triton.jit(do_not_specialize=["pointer", "row"])
def summarise(
    jobs,
    pointer: tl.int64,
    row: tl.int64,
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
    WALK: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Summaries of one launch.

    Args:
        jobs: int64, for each program where its job starts in them, then the jobs, see ``plan``; one job
            alone where ``pointer`` is not 0.
        pointer: address of the tensor of one job alone.
        row: of one job alone.
        rows: int64 (rows, 74), where summaries go.
        partials: int64 (programs, 74), of tensors that several programs share.
        counters: int32, one a program and then one a tensor, 0 before and after.
        powers: int64 (17, 4, 1024).
        blocks: int16, of each sketch block its rotation and, times 64, the start of its signs in units of 16.
        signs: float64 (3072,), 1 or -1; then so many as bfloat16 and as float32.
        float8: float32 (4, 256), what bytes mean.
        CODE: of the dtype.
        DIGEST: whether it is wanted.
        SKETCH: whether it is wanted.
        WALK: how the elements of a run lie, see ``plan``.
        TILE: sketch blocks that are read as words at once.
        STEP: rows of 64 elements of each of these blocks whose loads are on their way together.
        PAIRS: whether the target has instructions for two numbers of 16 bits at once, which this needs.
    """
    program = tl.program_id(0)
    job = jobs
    address = pointer
    out_row = row
    if pointer == 0:
        job = jobs + tl.load(jobs + program)
        address = tl.load(job)
        out_row = tl.load(job + 1)
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

    OFFSETS: tl.constexpr = WALK == 1
    WORDS_OF_EIGHT: tl.constexpr = WALK == 2
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
    PER_ROW: tl.constexpr = 64 * BYTES // 8
    PER_WORD: tl.constexpr = 64 // PER_ROW
    GROUP: tl.constexpr = TILE * PER_ROW if WORDS_OF_EIGHT else LANES // 4
    lane = tl.arange(0, GROUP)
    column = lane & 63
    across = lane - column
    again = tl.arange(0, AGAIN)
    zeros = tl.zeros([GROUP], tl.int32)
    total = tl.zeros([GROUP], tl.float64)
    squares = tl.zeros([GROUP], tl.float64)
    digest = tl.zeros([GROUP], tl.int64)
    sketch = tl.zeros([GROUP], tl.float64)
    if WIDE:
        low = tl.full([GROUP], float("inf"), tl.float64)
        high = tl.full([GROUP], float("-inf"), tl.float64)
    else:
        low = tl.full([GROUP], float("inf"), tl.float32)
        high = tl.full([GROUP], float("-inf"), tl.float32)
    if CODE == 0:
        small = tl.full([GROUP], MOST64, tl.int64).to(tl.uint64, bitcast=True)
    elif FLOAT and not WORDS_OF_EIGHT:
        small = tl.full([GROUP], MOST32, tl.int32).to(tl.uint32, bitcast=True)
    else:
        small = low
    if WORDS_OF_EIGHT:
        of_last_dim = powers + tl.load(job + 17) * 4096
        second = tl.load(of_last_dim + 1)
        third = tl.load(of_last_dim + 2)
        fourth = tl.load(of_last_dim + 3)
        if CODE != 1:
            second -= 65536
            fourth -= third * 65536
        sign_words = signs.to(tl.pointer_type(tl.int64)) + (3840 if CODE == 1 else 3072)
        word_column = lane & (PER_ROW - 1)
        block_of_lane = lane // PER_ROW
        turned0 = sketch
        turned1 = sketch
        turned2 = sketch
        turned3 = sketch
        turned4 = sketch
        turned5 = sketch
        turned6 = sketch
    num_nan = tl.full([], 0, tl.int64)
    num_positive = tl.full([], 0, tl.int64)
    num_negative = tl.full([], 0, tl.int64)

    for run in range(local, num_runs, num_programs):
        line = run * 0
        if num_outer > 0:
            line = run // per_line
        start = (run - line * per_line) * rows_of_run
        length = ((tl.minimum(start + rows_of_run, split_size) - start) * row_size).to(tl.int32)
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
        front = 0
        if SKETCH:
            front = (flat & (LANES - 1)).to(tl.int32)
        elements = _elements(address + memory * BYTES, CODE)
        if WORDS_OF_EIGHT:
            of_run = tl.zeros([GROUP], tl.int64)
            for tile in range((front + length + TILE * LANES - 1) // (TILE * LANES)):
                block = tile * TILE + block_of_lane
                packed = lane * 0
                if SKETCH:
                    packed = tl.load(
                        blocks + flat // LANES + block, mask=block * LANES < front + length, other=0
                    ).to(tl.int32)
                turn = packed & (PER_WORD - 1)
                column_here = (word_column - (packed & 63) // PER_WORD) & (PER_ROW - 1)
                place = block * LANES - front + column_here * PER_WORD
                first_word = place // PER_WORD
                at = elements.to(tl.pointer_type(tl.int64)) + first_word
                weight_at = weights + first_word
                sign_at = sign_words + (packed >> 6) * (PER_ROW // 4) + column_here
                zero = tl.zeros([GROUP], tl.float64 if CODE == 1 else tl.float32)
                if (tile * TILE * LANES >= front) & ((tile + 1) * TILE * LANES <= front + length):
                    (
                        of_total, of_squares, of_low, of_high, of_small, of_tile, one, two, three, four,
                    ) = tile_of_words(
                        at, weight_at, sign_at, place, length, second, third, fourth, zero,
                        CODE, DIGEST, SKETCH, False, STEP, PAIRS,
                    )  # fmt: skip
                else:
                    (
                        of_total, of_squares, of_low, of_high, of_small, of_tile, one, two, three, four,
                    ) = tile_of_words(
                        at, weight_at, sign_at, place, length, second, third, fourth, zero,
                        CODE, DIGEST, SKETCH, True, STEP, PAIRS,
                    )  # fmt: skip
                all_total, all_squares = of_total, of_squares.to(tl.float64)
                if is_rare(of_squares, of_small, CODE):
                    (
                        all_total, all_squares, of_low, of_high, of_small, one, two, three, four, more_zeros,
                        more_nan, more_positive, more_negative,
                    ) = read_again(at, sign_at, place, length, total * 0, CODE, SKETCH)  # fmt: skip
                    zeros += more_zeros
                    num_nan += more_nan
                    num_positive += more_positive
                    num_negative += more_negative
                total += all_total
                squares += all_squares
                low = tl.minimum(low, of_low)
                high = tl.maximum(high, of_high)
                small = tl.minimum(small, of_small)
                if DIGEST:
                    of_run += of_tile
                if SKETCH:
                    turned0 += turned(turn, one, two, three, four, 0, CODE)
                    turned1 += turned(turn, one, two, three, four, 1, CODE)
                    turned2 += turned(turn, one, two, three, four, 2, CODE)
                    if CODE != 1:
                        turned3 += turned(turn, one, two, three, four, 3, CODE)
                        turned4 += turned(turn, one, two, three, four, 4, CODE)
                        turned5 += turned(turn, one, two, three, four, 5, CODE)
                        turned6 += turned(turn, one, two, three, four, 6, CODE)
            if DIGEST:
                digest += of_run * weight
        else:
            if CODE == 0:
                most = tl.zeros([GROUP], tl.int64)
            else:
                most = tl.zeros([GROUP], tl.int32)
            of_run = tl.zeros([GROUP], tl.int64)
            first_full = (front + LANES - 1) // LANES
            end_full = (front + length) // LANES
            rotations = blocks + flat // LANES
            num_pairs = (end_full - first_full) // 2
            packed = 0
            ahead = 0
            if SKETCH:
                packed = tl.load(rotations + first_full, mask=num_pairs > 0, other=0).to(tl.int32)
                ahead = tl.load(rotations + first_full + 1, mask=num_pairs > 0, other=0).to(tl.int32)
            for pair in range(
                num_pairs
            ):  # all that two full blocks hold is on its way before any is added up
                block = first_full + 2 * pair
                begin = block * LANES - front
                here = ((column - packed) & 63) + across
                there = ((column - ahead) & 63) + across + LANES
                raw0, raw1, raw2, raw3 = _loaded_block(
                    elements, elements + begin + here, offsets + begin + here, CODE, GROUP, OFFSETS
                )
                raw4, raw5, raw6, raw7 = _loaded_block(
                    elements, elements + begin + there, offsets + begin + there, CODE, GROUP, OFFSETS
                )
                weight_at, sign_at = weights + begin + here, signs + (packed >> 6) * 16 + here
                other_at, other_sign_at = weights + begin + there, signs + (ahead >> 6) * 16 + there - LANES
                if SKETCH:
                    again_in = block + 2 < end_full - 1
                    packed = tl.load(rotations + block + 2, mask=again_in, other=0).to(tl.int32)
                    ahead = tl.load(rotations + block + 3, mask=again_in, other=0).to(tl.int32)
                for group in tl.static_range(4):
                    raw = raw0 if group == 0 else raw1 if group == 1 else raw2 if group == 2 else raw3
                    zeros, small, most, low, high, total, squares, of_run, sketch = _after_tile(
                        raw, weight_at + group * GROUP, sign_at + group * GROUP, here >= 0, float8,
                        zeros, small, most, low, high, total, squares, of_run, sketch,
                        CODE, DIGEST, SKETCH, False,
                    )  # fmt: skip
                for group in tl.static_range(4):
                    raw = raw4 if group == 0 else raw5 if group == 1 else raw6 if group == 2 else raw7
                    zeros, small, most, low, high, total, squares, of_run, sketch = _after_tile(
                        raw, other_at + group * GROUP, other_sign_at + group * GROUP, here >= 0, float8,
                        zeros, small, most, low, high, total, squares, of_run, sketch,
                        CODE, DIGEST, SKETCH, False,
                    )  # fmt: skip
            for rest in range(
                3
            ):  # a block at the front that is not full, the last of an odd number, one at the end
                block = first_full + 2 * num_pairs + rest - 1
                if rest == 0:
                    block = 0
                if (block * LANES < front + length) & ((rest > 0) | (first_full > 0)):
                    packed = 0
                    if SKETCH:
                        packed = tl.load(rotations + block).to(tl.int32)
                    begin = block * LANES - front
                    for group in tl.static_range(4):
                        here = ((column - packed) & 63) + across + group * GROUP
                        ok = (begin + here >= 0) & (begin + here < length)
                        at = elements + begin + here
                        if OFFSETS:
                            at = elements + tl.load(offsets + begin + here, mask=ok, other=0)
                        raw = _masked(at, ok, CODE)
                        zeros, small, most, low, high, total, squares, of_run, sketch = _after_tile(
                            raw, weights + begin + here, signs + (packed >> 6) * 16 + here, ok, float8,
                            zeros, small, most, low, high, total, squares, of_run, sketch,
                            CODE, DIGEST, SKETCH, True,
                        )  # fmt: skip
            if DIGEST:
                digest += of_run * weight
            if FLOAT:  # noqa: SIM102  (triton takes no `and` of a constant and a number)
                if tl.max(most, axis=0) >= (INF64 if CODE == 0 else INF32):
                    more_nan, more_positive, more_negative = _counted(
                        elements, offsets, float8, length, again, CODE, OFFSETS
                    )
                    num_nan += more_nan
                    num_positive += more_positive
                    num_negative += more_negative

    if CODE == 0:
        least = tl.min(small, axis=0).to(tl.int64, bitcast=True)
        smallest = tl.where(least >= INF64 - 1, INF64, least + 1).to(tl.float64, bitcast=True)
    elif FLOAT and not WORDS_OF_EIGHT:
        least = tl.min(small, axis=0).to(tl.int32, bitcast=True)
        smallest = tl.where(least >= INF32 - 1, INF32, least + 1).to(tl.float32, bitcast=True).to(tl.float64)
    else:
        smallest = tl.min(small, axis=0).to(tl.float64)
    out = rows + out_row * WORDS
    shared = num_programs > 1
    base = partials + tl.load(job + 4) * WORDS
    if shared:
        out = base + local * WORDS
    numbers = out.to(tl.pointer_type(tl.float64))
    tl.store(out, num_nan)
    tl.store(out + 1, num_positive)
    tl.store(out + 2, num_negative)
    tl.store(out + 3, tl.sum(zeros.to(tl.int64), axis=0))
    tl.store(out + 4, tl.sum(digest, axis=0))
    tl.store(numbers + 5, tl.min(low, axis=0).to(tl.float64))
    tl.store(numbers + 6, tl.max(high, axis=0).to(tl.float64))
    tl.store(numbers + 7, smallest)
    tl.store(numbers + 8, tl.sum(total, axis=0))
    tl.store(numbers + 9, tl.sum(squares, axis=0))
    if WORDS_OF_EIGHT:
        if SKETCH:
            first_bucket = 10 + tl.arange(0, PER_ROW) * PER_WORD
            next_bucket = 10 + (tl.arange(0, PER_ROW) + 1) % PER_ROW * PER_WORD
            tl.store(numbers + first_bucket, _over_blocks(turned0, TILE, PER_ROW))
            tl.store(numbers + first_bucket + 1, _over_blocks(turned1, TILE, PER_ROW))
            if CODE == 1:
                tl.debug_barrier()
                _add_to(numbers + next_bucket, _over_blocks(turned2, TILE, PER_ROW))
            else:
                tl.store(numbers + first_bucket + 2, _over_blocks(turned2, TILE, PER_ROW))
                tl.store(numbers + first_bucket + 3, _over_blocks(turned3, TILE, PER_ROW))
                tl.debug_barrier()
                _add_to(numbers + next_bucket, _over_blocks(turned4, TILE, PER_ROW))
                _add_to(numbers + next_bucket + 1, _over_blocks(turned5, TILE, PER_ROW))
                _add_to(numbers + next_bucket + 2, _over_blocks(turned6, TILE, PER_ROW))
    elif SKETCH:
        bucket = tl.arange(0, 64)
        tl.store(numbers + 10 + bucket, tl.sum(tl.reshape(sketch, [GROUP // 64, 64]), axis=0))
    if shared:
        first = local // FAMILY * FAMILY
        num_families = (num_programs + FAMILY - 1) // FAMILY
        counter = counters + tl.load(job + 4) + local // FAMILY
        source = base + first * WORDS
        target = source
        if num_families == 1:
            target = rows + out_row * WORDS
        many = tl.minimum(num_programs - first, FAMILY)
        apart = 1
        going = many > 0
        for _level in range(2):
            if going:
                tl.debug_barrier()
                going = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == many - 1
                if going:
                    tl.debug_barrier()
                    tl.store(counter, 0)
                    _combine(source, many, apart, target)
                    going = (num_families > 1) & (apart == 1)
                    counter = counters + tl.load(job + 5)
                    source = base
                    target = rows + out_row * WORDS
                    many = num_families
                    apart = FAMILY


@triton.jit
def _combine(partials, num_parts, apart, out):
    """Add up parts in their order, so many rows apart; caches that others do not write are passed by."""
    word = tl.arange(0, 128)
    there = word < WORDS
    nothing = word * 0
    counts = nothing.to(tl.int64)
    sums = nothing.to(tl.float64)
    low = sums + float("inf")
    high = sums - float("inf")
    for first in range(0, num_parts, 8):
        for each in tl.static_range(8):
            ok = there & (nothing + first + each < num_parts)
            at = partials + (first + each) * apart * WORDS + word
            raw = tl.load(at, mask=ok, other=0, cache_modifier=".cg")
            number = raw.to(tl.float64, bitcast=True)
            counts += raw
            sums += number
            low = tl.minimum(low, tl.where(ok, number, float("inf")))
            high = tl.maximum(high, tl.where(ok, number, float("-inf")))
    found = tl.where((word == 5) | (word == 7), low, tl.where(word == 6, high, sums))
    tl.debug_barrier()  # where the parts were, their sum may be written
    tl.store(out + word, tl.where(word < 5, counts, found.to(tl.int64, bitcast=True)), mask=there)
