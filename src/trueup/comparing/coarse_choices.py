"""Choices that one run makes among numbers of a coarse dtype and the other does not: a router in bfloat16.

A call that gives integers with numbers chose among them. Where it is given bit-equal tensors in both runs and
its numbers have two dtypes, it either gave them in the coarser one, so that they are the finer ones rounded
once, or computed them in it: then many are another number. Which rounding does to a near tie is seen in few
tokens, and in a coarse program in no tolerance, but they are other tokens in every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from trueup.comparing.first import JudgedStep
from trueup.comparing.metrics import Metrics
from trueup.comparing.precision_gap import PrecisionGap, gap_from
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.thresholds import NORM_OTHERS
from trueup.numerics.dtypes import DTYPES, float64_from_array, rounded_to, unit_roundoffs
from trueup.store import TraceSource
from trueup.types.arrays import Floats


def gap_of_choices(judged: JudgedStep, sides: tuple[TraceSource, TraceSource]) -> PrecisionGap | None:
    """The modules that choose among numbers computed in a coarser dtype on one side; None where there are
    none, or values are lacking."""
    rows, words = judged.rows, judged.rows.match.words
    of_target, of_reference = judged.at
    found = []
    for row in _candidates(rows, judged.metrics):
        target = values_of(rows.target, row, sides[0], *of_target)
        reference = values_of(rows.reference, row, sides[1], *of_reference)
        if target is None or reference is None or target.shape != reference.shape:
            continue
        coarse = _coarser(words.dtype[rows.target.dtype[row]], words.dtype[rows.reference.dtype[row]])
        if float((rounded_to(target, coarse) == rounded_to(reference, coarse)).mean()) < NORM_OTHERS:
            found.append(row)
    if not found:
        return None
    calls = {int(rows.target.call[row]): int(rows.of_call("type")[row]) for row in found}
    types = Counter(words.type[code] for code in calls.values())
    target_dtype, reference_dtype = (words.dtype[h.dtype[found[0]]] for h in (rows.target, rows.reference))
    modules = tuple(f"{name} ({num})" for name, num in types.items())
    return gap_from(judged, found[0], target_dtype, reference_dtype, modules=modules)


def _candidates(rows: StepRows, metrics: Metrics) -> Iterator[int]:
    """Numbers in two dtypes, of modules that give integers beside them and are given bit-equal tensors."""
    call, roundoff = rows.target.call, unit_roundoffs(rows.match.words.dtype)
    apart = ~rows.paired | ~metrics.bits_equal
    forward = rows.phase_is("forward") & rows.kind_is("module") & (call >= 0)
    inputs, outputs = forward & rows.slot_starts("input"), forward & rows.slot_starts("output") & rows.paired
    given, chooses = (np.zeros(rows.match.target.num_calls + 1, bool) for _ in range(2))
    given[call[inputs & ~apart]] = True
    given[call[inputs & apart]] = False
    sides = roundoff[rows.target.dtype], roundoff[rows.reference.dtype]
    chooses[call[outputs & np.isnan(sides[0]) & np.isnan(sides[1])]] = True
    floating = ~np.isnan(sides[0]) & ~np.isnan(sides[1])
    made = outputs & floating & (rows.target.dtype != rows.reference.dtype) & (given & chooses)[call]
    made &= ~np.maximum.accumulate(rows.phase_is("param") & apart)
    yield from np.flatnonzero(made).tolist()


def _coarser(target: str, reference: str) -> str:
    one, other = unit_roundoffs([target, reference])[:2]
    return target if one >= other else reference


def values_of(half: Half, row: int, source: TraceSource, step: int, rank: int) -> Floats | None:
    """The stored values of a row of one side; None where they were not kept."""
    if half.summary[row] < 0:
        return None
    tensor = source.tensor(step, rank, half.tables.summary_row(int(half.summary[row])))
    if tensor is None or tensor.dtype not in DTYPES:
        return None
    values = tensor.data.view(np.dtype(DTYPES[tensor.dtype].storage))
    return float64_from_array(values, tensor.dtype).reshape(tensor.shape)
