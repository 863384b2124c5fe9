"""Activation functions that a coarse dtype's tolerance does not tell apart: gelu and its approximation.

Two functions that are near each other give most numbers of a coarse dtype alike, and the others one rounding
apart. Which of them a program applies, the others tell: of what a module gave and the next one was given, the
function is worked out in float64 and rounded once. Where two known functions give different numbers, a side
that applies one of them has that one's, nearly all of them; one that rounds inside has neither's, and is not
told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trueup.comparing.coarse_choices import values_of
from trueup.comparing.first import First, JudgedStep, first_of_rows
from trueup.comparing.judgement import DIFFERENT, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.thresholds import ACTIVATION_NUMBERS, NORM_SAME
from trueup.numerics.activations import ACTIVATIONS
from trueup.numerics.dtypes import rounded_to
from trueup.store import TraceSource
from trueup.types.arrays import Bools, Floats

_COARSE = ("bfloat16", "float16")
_MOST_NUMBERS = 1 << 22
"""of a tensor that is read"""
_SAMPLED = 1 << 16
MOST = 4
"""places that are worked out, of inputs and of outputs of what one class of module calls"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationGap:
    """Two activation functions at one place, whose results no tolerance tells apart."""

    at: First
    """what was made with them"""
    target: str
    reference: str
    numbers: int
    """of the target, for which the two give different numbers"""


def gap_of_activations(judged: JudgedStep, sides: tuple[TraceSource, TraceSource]) -> ActivationGap | None:
    """The first place where the two sides apply two known functions; None where there is none, or values are
    lacking."""
    rows = judged.rows
    for given, made in _candidates(rows, judged.metrics, judged.judgement):
        dtype = rows.match.words.dtype[int(rows.target.dtype[made])]
        target, reference = (
            _read(half, given, made, source, where)
            for half, source, where in zip((rows.target, rows.reference), sides, judged.at, strict=True)
        )
        found = None if target is None or reference is None else applied(target, reference, dtype)
        if found is not None:
            first = first_of_rows(judged, made)
            return ActivationGap(at=first, target=found[0], reference=found[1], numbers=found[2])
    return None


def _read(
    half: Half, given: int, made: int, source: TraceSource, at: tuple[int, int]
) -> tuple[Floats, Floats] | None:
    """What a side was given and made, every n-th element; None where it was not kept."""
    x, y = (values_of(half, row, source, *at) for row in (given, made))
    if x is None or y is None:
        return None
    step = max(1, x.size // _SAMPLED)
    return x.ravel()[::step], y.ravel()[::step]


def applied(
    target: tuple[Floats, Floats], reference: tuple[Floats, Floats], dtype: str
) -> tuple[str, str, int] | None:
    """The two functions, each of (given, made) of a side, and how many of the target's numbers tell; None
    where they are one, or not known.

    Example:
        >>> x = rounded_to(np.random.default_rng(0).normal(size=4096), "bfloat16")
        >>> made = [rounded_to(ACTIVATIONS[name](x), "bfloat16") for name in ("silu", "relu")]
        >>> applied((x, made[0]), (x, made[1]), "bfloat16")[:2]
        ('silu', 'relu')
    """
    results = [
        {name: rounded_to(f(x), dtype) for name, f in ACTIVATIONS.items()} for x, _ in (target, reference)
    ]
    fits = [
        [name for name, result in one.items() if (result == y).mean() >= NORM_SAME]
        for one, (_, y) in zip(results, (target, reference), strict=True)
    ]
    for own in fits[0]:
        for other in fits[1]:
            numbers = _num_telling(results[0][own], results[0][other], target[1])
            if own != other and numbers and _num_telling(results[1][other], results[1][own], reference[1]):
                return own, other, numbers
    return None


def _num_telling(own: Floats, other: Floats, made: Floats) -> int:
    """Numbers that two functions give different, where what was made has one's; 0 where too few tell."""
    apart = own != other
    num = int(apart.sum())
    return num if num >= ACTIVATION_NUMBERS and (made == own)[apart].mean() >= NORM_SAME else 0


def _candidates(rows: StepRows, metrics: Metrics, judgement: Judgement) -> Iterator[tuple[int, int]]:
    """Row of what was given and of what was made of it, of one shape and coarse dtype: input and output of a
    module that calls none, or what one module gave last and the next one below the same caller was given."""
    words, call = rows.match.words, rows.target.call
    coarse = np.array([name in _COARSE for name in words.dtype] + [False])
    forward = rows.phase_is("forward") & rows.kind_is("module") & rows.paired & (call >= 0)
    forward &= coarse[rows.target.dtype] & (rows.target.dtype == rows.reference.dtype)
    forward &= (rows.target.shape == rows.reference.shape) & (rows.target.numel <= _MOST_NUMBERS)
    apart = forward & ~metrics.bits_equal & (judgement.status != DIFFERENT)
    inputs, outputs = rows.slot_starts("input"), rows.slot_starts("output")
    leaves = _leaves(rows)
    parent, type_of = rows.match.target.parent, np.append(rows.match.target.type, -1)
    last: dict[tuple[int, int], int] = {}
    """caller and shape -> what a module below it gave last"""
    own: dict[tuple[int, int], int] = {}
    """call and shape -> its input"""
    seen: Counter[tuple[int, int]] = Counter()
    for row in np.flatnonzero(forward).tolist():
        shape, caller = int(rows.target.shape[row]), int(parent[call[row]])
        before = last.get((caller, shape)) if inputs[row] else None
        if outputs[row]:
            before = own.get((int(call[row]), shape)) if leaves[call[row]] else None
            last[caller, shape] = row
        elif inputs[row]:
            own[int(call[row]), shape] = row
        kind = int(type_of[caller]), int(outputs[row])
        passed_on = before is not None and rows.target.summary[before] == rows.target.summary[row]
        if before is None or passed_on or not apart[row] or seen[kind] >= MOST:
            continue
        seen[kind] += 1
        yield before, row


def _leaves(rows: StepRows) -> Bools:
    """Calls that call no module."""
    call = rows.target.call
    parents = rows.match.target.parent[call[rows.kind_is("module") & (call >= 0)]]
    leaves = np.ones(rows.match.target.num_calls + 1, bool)
    leaves[parents[parents >= 0]] = False
    return leaves
