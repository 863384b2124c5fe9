"""The Triton kernel in Triton's interpreter: on the CPU, over CPU memory."""

from __future__ import annotations

import numpy as np
import torch

from trueup.adapters.torch.device import kernel
from trueup.adapters.torch.device.parts import PART_DTYPE, PART_WORDS, Whole, summaries_from_parts
from trueup.adapters.torch.device.plan import MAX_PROGRAMS, PER_WORD, WORD_BYTES, dims_of, plan_of
from trueup.adapters.torch.device.tables import Tables
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import HAS_DIGEST, HAS_SKETCH
from trueup.types.arrays import Array

CPU = torch.device("cpu")
TABLES = Tables(CPU, lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8))


def summarised(
    tensors: list[torch.Tensor],
    dtype: str,
    want: int,
    whole: tuple[int, ...] | None = None,
    first: int = 0,
    *,
    max_programs: int = MAX_PROGRAMS,
    words: bool = True,
    tile: int = 8,
) -> Array:
    """Summaries of tensors of one dtype by one launch; ``words``: whether they may be read as words."""
    pairs = DTYPES[dtype].kind == "complex"
    plans = [
        plan_of(
            dims_of(t.shape, t.stride(), whole or tuple(t.shape), pairs=pairs),
            first,
            0 if t.data_ptr() % WORD_BYTES or not words else PER_WORD.get(dtype, 0),
        )
        for t in tensors
    ]
    if len({plan.walk for plan in plans}) > 1:
        return summarised(tensors, dtype, want, whole, first, max_programs=max_programs, words=False)
    starts, jobs, program = [], [], 0
    total = at = sum(min(plan.num_programs, max_programs) for plan in plans)
    alone = len(tensors) == 1
    for number, (tensor, plan) in enumerate(zip(tensors, plans, strict=True)):
        job, num = plan.words.copy(), min(plan.num_programs, max_programs)
        job[:6] = tensor.data_ptr(), number, program, num, program, total + number
        TABLES.fill(job, plan)
        TABLES.cover(plan.last_block)
        starts += [at] * num
        at += len(job)
        program += num
        jobs.append(job)
    rows = torch.full((len(tensors), PART_WORDS), -1)
    partials = torch.full((program, PART_WORDS), -1)
    counters = torch.zeros(total + len(tensors), dtype=torch.int32)
    with np.errstate(all="ignore"):
        kernel.summarise[(program,)](
            torch.from_numpy(np.concatenate(jobs if alone else [starts, *jobs])),
            tensors[0].data_ptr() if alone else 0,
            0,
            rows,
            partials,
            counters,
            TABLES.powers,
            TABLES.blocks,
            TABLES.signs,
            TABLES.float8,
            CODE=kernel.code_of(dtype),
            DIGEST=bool(want & HAS_DIGEST),
            SKETCH=bool(want & HAS_SKETCH),
            WALK=plans[0].walk,
            TILE=tile,
            STEP=4,
            PAIRS=False,
        )
    assert not counters.any()
    parts = rows.numpy().reshape(-1).view(PART_DTYPE)
    wholes = [
        Whole(row=n, numel=t.numel(), num_real=t.numel() * (2 if pairs else 1), want=want, num_parts=1)
        for n, t in enumerate(tensors)
    ]
    return summaries_from_parts(parts, wholes)
