"""Runs of floats of 16 or 32 bits read eight bytes a lane: the part of the kernel that a step spends most in.

A tile is a few sketch blocks of 1,024. So many lanes as 64 elements have words share a block, and each goes
down its 16 rows of 64: the buckets of a lane's elements stay its own, but for a turn of less than a word,
which is made up for when the tile is over. What is rare is looked for once a tile and read again only there
(``read_again``): zeros, NaN, infinities, squares that float32 does not hold.

Elements of 16 bits are added up in float32, 16 of a lane at most (of the plain sum 32), then in float64. An
addition loses 2^-24 of a partial sum at most, so 18 of them lose less than 1.1e-6 of a sum of squares, half
of that of a norm, and as much of a mean as of the mean size; what is lost differs in sign from lane to lane
(3e-8 of a norm was the most seen on a GPU). Elements of 32 bits are added up in float64.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROWS = tl.constexpr(16)
"""rows of 64 elements in a sketch block"""
TINY = tl.constexpr(1e-30)
"""a lane's sum of squares in float32 below which single squares may have lost bits: they are exact from
2^-126 on, so 64 of them that are not leave less than 64 * 2^-149 = 9e-44 out"""


@triton.jit
def numbers_of(word, CODE: tl.constexpr):
    """A word's elements as float32: four, or two of 32 bits (told twice)."""
    low = word.to(tl.int32)
    high = (word >> 32).to(tl.int32)
    if CODE == 1:
        first = low.to(tl.float32, bitcast=True)
        second = high.to(tl.float32, bitcast=True)
        return first, second, first, second
    elif CODE == 2:
        first = low.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        second = (low >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        third = high.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        fourth = (high >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        return first, second, third, fourth
    else:
        first = (low << 16).to(tl.float32, bitcast=True)
        second = (low & -65536).to(tl.float32, bitcast=True)
        third = (high << 16).to(tl.float32, bitcast=True)
        fourth = (high & -65536).to(tl.float32, bitcast=True)
        return first, second, third, fourth


@triton.jit
def signs_of(word, CODE: tl.constexpr):
    """1 or -1 for each element of a word, as float32: four of 16 bits are kept as bfloat16."""
    if CODE == 1:
        return numbers_of(word, 1)
    else:
        return numbers_of(word, 3)


@triton.jit
def _least(one, two, CODE: tl.constexpr):
    """The lesser of numbers of 16 bits, two and two; what is NaN is passed by."""
    if CODE == 2:
        return tl.inline_asm_elementwise(
            "min.f16x2 $0, $1, $2;", "=r,r,r", [one, two], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        return tl.inline_asm_elementwise(
            "min.bf16x2 $0, $1, $2;", "=r,r,r", [one, two], dtype=tl.int32, is_pure=True, pack=1
        )


@triton.jit
def _most(one, two, CODE: tl.constexpr):
    """The greater, likewise."""
    if CODE == 2:
        return tl.inline_asm_elementwise(
            "max.f16x2 $0, $1, $2;", "=r,r,r", [one, two], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        return tl.inline_asm_elementwise(
            "max.bf16x2 $0, $1, $2;", "=r,r,r", [one, two], dtype=tl.int32, is_pure=True, pack=1
        )


@triton.jit
def _apart(pair, CODE: tl.constexpr):
    """Two numbers of 16 bits as float32."""
    first, second, _third, _fourth = numbers_of(pair.to(tl.int64), CODE)
    return first, second


@triton.jit
def _halves(number):
    """A 64-bit number as two of 32."""
    whole = number.to(tl.uint64, bitcast=True)
    return (whole & 0xFFFFFFFF).to(tl.uint32), (whole >> 32).to(tl.uint32)


@triton.jit
def _after_products(low, high, word, weight, second, third, fourth, CODE: tl.constexpr):
    """Digest after a word: ``low`` of 64 bits, and what is to be added to its upper half. A word's elements
    count with powers of one generator, ``second`` and on; their bits are told apart where they differ from
    what a pair of them says as one number."""
    of_low, of_high = _halves(word)
    if CODE == 1:
        left = (of_low ^ (of_low >> 16)).to(tl.uint64)
        right = of_high ^ (of_high >> 16)
        second_low, second_high = _halves(second)
        left += right.to(tl.uint64) * second_low.to(tl.uint64)
        upper = right * second_high
    else:
        odd, last = of_low >> 16, of_high >> 16
        second_low, second_high = _halves(second)
        third_low, third_high = _halves(third)
        fourth_low, fourth_high = _halves(fourth)
        left = of_low.to(tl.uint64) + odd.to(tl.uint64) * second_low.to(tl.uint64)
        left += of_high.to(tl.uint64) * third_low.to(tl.uint64)
        left += last.to(tl.uint64) * fourth_low.to(tl.uint64)
        upper = odd * second_high + of_high * third_high + last * fourth_high
    left_low = (left & 0xFFFFFFFF).to(tl.uint32)
    left_high = (left >> 32).to(tl.uint32) + upper
    weight_low, weight_high = _halves(weight)
    low += left_low.to(tl.uint64) * weight_low.to(tl.uint64)
    high += left_low * weight_high + left_high * weight_low
    return low, high


@triton.jit
def tile_of_words(
    at, weight_at, sign_at, place, length, second, third, fourth, zero,
    CODE: tl.constexpr, DIGEST: tl.constexpr, SKETCH: tl.constexpr, MASKED: tl.constexpr, STEP: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """Sums of a tile that has nothing rare.

    Args:
        at: of a lane's first word.
        weight_at: of that word's digest weight.
        sign_at: of its elements' signs, as numbers.
        place: index of its first element in the run; negative before it.
        length: elements of the run.
        second: what the second element of a word counts beside the first (of 16 bits: less 2^16), third and
            fourth likewise.
        zero: 0 a lane, in the dtype of sums.
        PAIRS: whether the target compares numbers of 16 bits two and two.
    """
    PER_ROW: tl.constexpr = 32 if CODE == 1 else 16
    total = zero
    total_c = zero
    squares = zero
    squares_b = zero
    squares_c = zero
    squares_d = zero
    nothing = (zero * 0).to(tl.float32)
    low = nothing + float("inf")
    high = nothing - float("inf")
    small = nothing + float("inf")
    one = nothing
    two = nothing
    three = nothing
    four = nothing
    of_low = nothing.to(tl.uint64)
    of_high = nothing.to(tl.uint32)
    no_pair = nothing.to(tl.int32) + 0x7FFF7FFF  # NaN, twice
    low_pair = no_pair
    high_pair = no_pair
    small_pair = no_pair
    for _group in range(ROWS // STEP):
        for row in tl.static_range(STEP):
            if MASKED:
                ok = (place + row * 64 >= 0) & (place + row * 64 < length)
                word = tl.load(at + row * PER_ROW, mask=ok, other=0, eviction_policy="evict_first")
            else:
                word = tl.load(at + row * PER_ROW, eviction_policy="evict_first")
            if DIGEST:
                if MASKED:
                    weight = tl.load(weight_at + row * PER_ROW, mask=ok, other=0)
                else:
                    weight = tl.load(weight_at + row * PER_ROW)
                of_low, of_high = _after_products(of_low, of_high, word, weight, second, third, fourth, CODE)
            a, b, c, d = numbers_of(word, CODE)
            kept_a, kept_b = a.to(zero.dtype), b.to(zero.dtype)
            total += kept_a + kept_b
            squares += kept_a * kept_a
            squares_b += kept_b * kept_b
            if CODE != 1:
                total_c += c + d
                squares_c += c * c
                squares_d += d * d
            if SKETCH:
                signs = tl.load(sign_at + row * PER_ROW)
                sign_a, sign_b, sign_c, sign_d = signs_of(signs, CODE)
                one += a * sign_a
                two += b * sign_b
                if CODE != 1:
                    three += c * sign_c
                    four += d * sign_d
            if PAIRS:
                left = word.to(tl.int32)
                right = (word >> 32).to(tl.int32)
                if MASKED:
                    left = tl.where(ok, left, no_pair)
                    right = tl.where(ok, right, no_pair)
                low_pair = _least(low_pair, _least(left, right, CODE), CODE)
                high_pair = _most(high_pair, _most(left, right, CODE), CODE)
                sizes = _least(left & 0x7FFF7FFF, right & 0x7FFF7FFF, CODE)
                small_pair = _least(small_pair, sizes, CODE)
            else:
                if MASKED:
                    a = tl.where(ok, a, float("nan"))
                    b = tl.where(ok, b, float("nan"))
                    c = tl.where(ok, c, float("nan"))
                    d = tl.where(ok, d, float("nan"))
                low = tl.minimum(low, tl.minimum(a, b))
                high = tl.maximum(high, tl.maximum(a, b))
                small = tl.minimum(small, tl.minimum(tl.abs(a), tl.abs(b)))
                if CODE != 1:
                    low = tl.minimum(low, tl.minimum(c, d))
                    high = tl.maximum(high, tl.maximum(c, d))
                    small = tl.minimum(small, tl.minimum(tl.abs(c), tl.abs(d)))
        at += STEP * PER_ROW
        weight_at += STEP * PER_ROW
        sign_at += STEP * PER_ROW
        place += STEP * 64
    if PAIRS:
        first, second = _apart(low_pair, CODE)
        low = tl.minimum(low, tl.minimum(first, second))
        first, second = _apart(high_pair, CODE)
        high = tl.maximum(high, tl.maximum(first, second))
        first, second = _apart(small_pair, CODE)
        small = tl.minimum(small, tl.minimum(first, second))
    digest = (of_low + (of_high.to(tl.uint64) << 32)).to(tl.int64, bitcast=True)
    total = total.to(tl.float64) + total_c.to(tl.float64)
    squares = (squares + squares_b) + (squares_c + squares_d)
    return total, squares, low, high, small, digest, one, two, three, four


@triton.jit
def is_rare(squares, small, CODE: tl.constexpr):
    """Whether a lane has met what ``tile_of_words`` leaves to ``read_again``: zeros, what is not finite, and
    squares of bfloat16 beyond float32."""
    rare = (squares < float("inf")) & (small > 0)
    if CODE == 3:
        rare = rare & ((squares >= TINY) | (small == float("inf")))
    return tl.max(tl.where(rare, 0, 1), axis=0) > 0


@triton.jit
def read_again(
    at, sign_at, place, length, zero,
    CODE: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    """A tile's sums (in float64, but for those of the sketch) over what is finite, and counts of zeros (a
    lane), NaN and both infinities."""
    PER_ROW: tl.constexpr = 32 if CODE == 1 else 16
    NUM: tl.constexpr = 2 if CODE == 1 else 4
    total = zero
    squares = zero
    one = zero.to(tl.float32)
    two = one
    three = one
    four = one
    low = one + float("inf")
    high = one - float("inf")
    small = low
    zeros = zero.to(tl.int32)
    num_nan = zeros
    num_positive = zeros
    num_negative = zeros
    for row in range(ROWS):
        ok = (place + row * 64 >= 0) & (place + row * 64 < length)
        word = tl.load(at + row * PER_ROW, mask=ok, other=0)
        signs = word * 0
        if SKETCH:
            signs = tl.load(sign_at + row * PER_ROW)
        a, b, c, d = numbers_of(word, CODE)
        sign_a, sign_b, sign_c, sign_d = signs_of(signs, CODE)
        for element in tl.static_range(NUM):
            value = a if element == 0 else b if element == 1 else c if element == 2 else d
            sign = sign_a if element == 0 else sign_b if element == 1 else sign_c if element == 2 else sign_d
            finite = tl.abs(value) < float("inf")
            known = tl.where(ok & finite, value, float("nan"))
            zeros += (known == 0).to(tl.int32)
            num_nan += (value != value).to(tl.int32)
            num_positive += (value == float("inf")).to(tl.int32)
            num_negative += (value == float("-inf")).to(tl.int32)
            low = tl.minimum(low, known)
            high = tl.maximum(high, known)
            small = tl.minimum(small, tl.where(known == 0, float("inf"), tl.abs(known)))
            kept = tl.where(finite, value, 0.0).to(tl.float64)
            total += kept
            squares += kept * kept
            if SKETCH:
                kept = tl.where(finite, value, 0.0) * sign
                if element == 0:
                    one += kept
                elif element == 1:
                    two += kept
                elif element == 2:
                    three += kept
                else:
                    four += kept
    return (
        total, squares, low, high, small, one, two, three, four, zeros,
        tl.sum(num_nan, axis=0), tl.sum(num_positive, axis=0), tl.sum(num_negative, axis=0),
    )  # fmt: skip


@triton.jit
def turned(turn, one, two, three, four, AT: tl.constexpr, CODE: tl.constexpr):
    """Of a lane's sums, the one whose bucket is ``AT`` after the first of the lane's, where they turn by less
    than a word; 0 where none is. Rounded to float32 as all sketches are: sums of 16."""
    found = tl.where(turn == AT, one, 0.0)
    found = tl.where(turn == AT - 1, two, found)
    if CODE != 1:
        found = tl.where(turn == AT - 2, three, found)
        found = tl.where(turn == AT - 3, four, found)
    return found.to(tl.float64)
