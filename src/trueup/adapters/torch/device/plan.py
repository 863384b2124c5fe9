"""How the kernel walks a tensor: runs of elements whose digest weights and memory offsets are one table.

A run is ``rows`` consecutive indices of one dim with everything inside them, at most ``MAX_RUN`` elements.
The dims outside (and where in its dim the run starts) give one factor of the digest, one memory offset and
one row-major index of the whole a run. Any strides, any number of dims and any part of a larger tensor are
walked so; a contiguous tensor needs no table of offsets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueup.numerics.digest import powers
from trueup.numerics.sketch import PERIOD

MAX_RUN = 8 * PERIOD
"""elements of a run: eight sketch blocks"""
FEW_PROGRAMS, MAX_PROGRAMS = 264, 1056
"""programs that share one tensor: two for each of the some hundred processors of a device, eight of a large
tensor; more have more to add up"""
MOST_WORD_PROGRAMS = 2112
"""of one warp, of a large tensor whose elements are read as words: 16 for each of 132 processors"""

HEAD_WORDS, DIM_WORDS = 18, 4
"""int64 words of a job, and of each of its outer dims"""
POINTER, OUT_ROW, AT_LAUNCH = 0, 1, 6
"""the words before AT_LAUNCH are known at a launch: address of the tensor, its row, its first program in the
launch, how many it has, where their parts go, and its counter"""
WEIGHTS, OFFSETS = 16, 17
"""words that hold addresses of a run's tables; of a run whose elements do not lie apart, OFFSETS holds the
generator of its last dim"""
IN_ORDER, APART, AS_WORDS = 0, 1, 2
"""how the elements of a run lie: one after another, apart, or one after another in words of eight bytes"""
WORD_BYTES = 8
PER_WORD = {"float32": 2, "complex64": 2, "float16": 4, "bfloat16": 4}
"""real elements of a word, of dtypes whose words the kernel takes apart"""


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim: its size, stride in memory and in the whole tensor's row-major order, generator of the
    digest."""

    size: int
    stride: int
    flat: int
    generator: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan:
    """Of every tensor with these dims.

    Attributes:
        words: of its job; those known at launch, and the addresses of tables, are 0.
        num_programs: how many programs share it.
        inner: dims inside a run, the first of them open-ended: what its tables depend on.
        walk: how a run's elements lie: IN_ORDER, APART or AS_WORDS.
        per_word: real elements that share a digest weight of the tables: those of a word, or 1.
        last_block: the highest sketch block it touches.
        numel: real elements.
    """

    words: NDArray[np.int64]
    num_programs: int
    inner: tuple[Dim, ...]
    walk: int
    per_word: int
    last_block: int
    numel: int


def dims_of(
    shape: Sequence[int],
    strides: Sequence[int],
    whole: Sequence[int],
    *,
    pairs: bool,
) -> tuple[Dim, ...]:
    """The dims of a tensor, in elements of its real view.

    Args:
        shape: of the tensor.
        strides: of the tensor, in elements.
        whole: shape that the sketch counts in.
        pairs: whether elements are complex.
    """
    step = 2 if pairs else 1
    dims = [
        Dim(size, stride * step, math.prod(whole[dim + 1 :]) * step, dim)
        for dim, (size, stride) in enumerate(zip(shape, strides, strict=True))
    ]
    return (*dims, *([Dim(2, 1, 1, 16)] if pairs else []))


def plan_of(dims: tuple[Dim, ...], first: int = 0, per_word: int = 0) -> KernelPlan:
    """How a tensor that is not empty is walked.

    Args:
        dims: outermost first.
        first: row-major index of its first element in the whole.
        per_word: real elements in a word, where the first lies at a multiple of ``WORD_BYTES`` and the kernel
            reads words of such elements; 0 where not.
    """
    kept = tuple(dim for dim in dims if dim.size > 1) or (_NONE,)
    if kept[-1].flat != 1:  # a part of one column: no two elements follow one another in the whole
        kept = (*kept, _NONE)
    outer, inner = _split(kept)
    split, row = inner[0], math.prod(dim.size for dim in inner[1:])
    rows = _rows(split, row, aligned=first % PERIOD == 0 and all(dim.flat % PERIOD == 0 for dim in outer))
    per_line = -(-split.size // rows)
    num_runs = per_line * math.prod(dim.size for dim in outer)
    walk = APART
    if _is_contiguous(inner):
        apart = (
            first,
            *(number for dim in outer for number in (dim.stride, dim.flat)),
            inner[-1].size,
            rows * row,
        )
        walk = AS_WORDS if per_word and not any(number % per_word for number in apart) else IN_ORDER
    words = np.zeros(HEAD_WORDS + DIM_WORDS * len(outer), np.int64)
    words[6:16] = (
        num_runs,
        per_line,
        rows,
        split.size,
        row,
        split.stride,
        split.flat,
        split.generator,
        len(outer),
        first,
    )
    for at, dim in enumerate(reversed(outer)):
        start = HEAD_WORDS + DIM_WORDS * at
        words[start : start + DIM_WORDS] = dim.size, dim.stride, dim.flat, dim.generator
    return KernelPlan(
        words=words,
        num_programs=_num_programs(num_runs, walk),
        inner=inner,
        walk=walk,
        per_word=per_word if walk == AS_WORDS else 1,
        last_block=(first + sum((dim.size - 1) * dim.flat for dim in kept)) // PERIOD,
        numel=math.prod(dim.size for dim in kept),
    )


_NONE = Dim(1, 1, 1, 0)


def _num_programs(num_runs: int, walk: int) -> int:
    if walk == AS_WORDS:
        return min(num_runs, max(MOST_WORD_PROGRAMS // 2, min(MOST_WORD_PROGRAMS, num_runs // 4)))
    return min(num_runs, max(FEW_PROGRAMS, min(MAX_PROGRAMS, num_runs // 4)))


def _rows(split: Dim, row: int, *, aligned: bool) -> int:
    """Rows of a run, so that it lies in at most eight sketch blocks. ``aligned``: lines start a block."""
    rows = min(max(MAX_RUN // row, 1), split.size)
    step = PERIOD // math.gcd(PERIOD, split.flat)
    if aligned and (rows == split.size or rows >= step):
        return rows if rows == split.size else rows // step * step
    even = WORD_BYTES // math.gcd(WORD_BYTES, row)  # so many rows end with a word
    most = max((MAX_RUN - PERIOD) // row, 1)
    if most < even:
        even = 1
    rows = min(most // even * even, split.size)
    rows = -(-split.size // -(-split.size // rows))
    return min(split.size, -(-rows // even) * even)


def _split(dims: tuple[Dim, ...]) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Outer dims, and those of a run: the longest tail that is row-major in the whole, whose rows fit."""
    at, row = len(dims) - 1, dims[-1].size
    while at > 0 and row <= MAX_RUN - PERIOD and dims[at - 1].flat == dims[at].flat * dims[at].size:
        at -= 1
        row *= dims[at].size
    return dims[:at], dims[at:]


def _is_contiguous(inner: tuple[Dim, ...]) -> bool:
    step = 1
    for dim in reversed(inner):
        if dim.stride != step:
            return False
        step *= dim.size
    return True


def weights_of(inner: tuple[Dim, ...], per_word: int = 1) -> NDArray[np.int64]:
    """Digest weights of a run's elements (of the first of each word), as many as fit a run; the first dim is
    as long as needed."""
    weights = np.ones(1, np.uint64)
    for number, dim in reversed(list(enumerate(inner))):
        size = dim.size if number else max(1, MAX_RUN // len(weights))
        weights = (powers(dim.generator, size)[:, None] * weights).ravel()
    return np.ascontiguousarray(weights[::per_word]).view(np.int64)


def offsets_of(inner: tuple[Dim, ...]) -> NDArray[np.int64]:
    """Memory offsets of a run's elements, in elements, as many as fit a run."""
    offsets = np.zeros(1, np.int64)
    for number, dim in reversed(list(enumerate(inner))):
        size = dim.size if number else max(1, MAX_RUN // len(offsets))
        steps = np.arange(size, dtype=np.int64) * dim.stride
        offsets = (steps[:, None] + offsets).ravel()
    return offsets
