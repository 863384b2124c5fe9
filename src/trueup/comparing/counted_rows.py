"""Rows of a gradient that are exactly zero in one run alone: positions that the loss counts, ids that train.

What a loss leaves out (an ignored label, padding, a mask) it sends nothing at all, and a row of an embedding
that no id asks for, or that is frozen, has no gradient. No rounding makes such zeros of a row: only underflow
does, of numbers near the smallest of their dtype, and a softmax that is 1 leaves one number or none. So a row
that is zero in one run is another's only where more than half of its numbers are there in the other run, and
large beside the smallest normal number. In a coarse program such rows may be far within the tolerance of the
whole gradient. Not of rows that stand elsewhere in the other run, nor of what cancels in every weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trueup.comparing.coarse_choices import values_of
from trueup.comparing.first import First, JudgedStep, first_of_rows
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.thresholds import COUNTED_SHARE, COUNTED_TIMES
from trueup.numerics.dtypes import DTYPES, unit_roundoffs
from trueup.store import TraceSource
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import RecordCode

_MOST_NUMBERS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRows:
    """Rows that have a gradient in one run alone."""

    at: First
    """the loss, or the gradient of the weight"""
    target: int
    """rows that have one"""
    reference: int
    total: int
    order: int
    """of the gradient's record in its step"""
    weight: str | None = None
    """an embedding's; None of the loss"""
    same_loss: bool = False
    """the loss is the same number, bit for bit: it counts the same positions, and sends back to others"""


def rows_that_count(judged: JudgedStep, sides: tuple[TraceSource, TraceSource]) -> CountedRows | None:
    """The first gradient with rows of one run alone; None where there is none, or values are lacking."""
    rows, words = judged.rows, judged.rows.match.words
    for row, at, weight, share in _candidates(judged):
        if judged.metrics.bits_equal[row] or rows.reference.numel[row] > _MOST_NUMBERS:
            continue
        why = judged.judgement.reasons.get(row)
        if rows.layout[row] >= 0 or (why is not None and why.code is RecordCode.WITHOUT_EFFECT):
            continue
        t, r = (
            values_of(half, row, source, *where)
            for half, source, where in zip((rows.target, rows.reference), sides, judged.at, strict=True)
        )
        dtypes = [words.dtype[half.dtype[row]] for half in (rows.target, rows.reference)]
        found = None if t is None or r is None else counted(t, r, dtypes, share=share)
        if found is not None:
            total = int(np.prod(words.shape[rows.reference.shape[row]][:-1]))
            return CountedRows(
                at=first_of_rows(judged, at),
                target=found[0],
                reference=found[1],
                total=total,
                order=row,
                weight=weight,
                same_loss=bool(weight is None and judged.metrics.bits_equal[at]),
            )
    return None


def counted(target: Floats, reference: Floats, dtypes: list[str], *, share: float) -> tuple[int, int] | None:
    """How many rows of each side are not zero, where some are zero on one side alone and by no underflow;
    None where none is.

    Args:
        target: a gradient; its last dim is a row.
        reference: likewise, of the same shape.
        dtypes: of both.
        share: what such a row has at least of the median length of those that both have.
    """
    if target.shape != reference.shape or target.ndim < 2 or not target.size:
        return None
    sides = [one.reshape(-1, one.shape[-1]) for one in (target, reference)]
    there: list[Bools] = [np.asarray(one.any(axis=1)) for one in sides]
    apart, both = there[0] != there[1], there[0] & there[1]
    if not apart.any() or not both.any():
        return None
    whole = np.where(there[0][:, None], sides[0], sides[1])[apart]
    smallest = COUNTED_TIMES * max(DTYPES[name].smallest_normal for name in dtypes)
    usual = float(np.median(np.linalg.norm(sides[1][both], axis=1)))
    clear = 2 * (np.abs(whole) > smallest).sum(axis=1) > whole.shape[1]
    clear &= np.linalg.norm(whole, axis=1) >= share * usual
    return (int(there[0].sum()), int(there[1].sum())) if clear.all() else None


def _candidates(judged: JudgedStep) -> Iterator[tuple[int, int, str | None, float]]:
    """Row of a gradient, the row it is told at, its weight, and the least share that counts."""
    rows = judged.rows
    roundoff = unit_roundoffs(rows.match.words.dtype)
    floating = ~np.isnan(roundoff[rows.target.dtype]) & ~np.isnan(roundoff[rows.reference.dtype])
    alike = rows.paired & floating & (rows.target.shape == rows.reference.shape)
    for loss, row in _sent_back(rows, alike):
        yield row, loss, None, 0.0
    given = _whole_inputs(rows, judged.metrics.bits_equal)
    names = rows.of_call("name")
    for row in np.flatnonzero(alike & rows.phase_is("param_grad") & rows.slot_starts("local")).tolist():
        name = rows.match.words.name[int(names[row])]
        if name.rpartition(".")[0] in given:
            yield row, row, name, COUNTED_SHARE


def _sent_back(rows: StepRows, alike: Bools) -> Iterator[tuple[int, int]]:
    """Each loss, and the first gradient of rows that backward gives a module after it."""
    dims = np.array([len(shape) for shape in rows.match.words.shape] + [0])[rows.reference.shape]
    losses = np.flatnonzero(rows.phase_is("loss") & rows.slot_is("value") & rows.paired)
    sent = alike & rows.phase_is("backward") & rows.kind_is("module") & rows.slot_starts("output")
    at = np.flatnonzero(sent & (dims >= 2))
    for loss in losses.tolist():
        after = at[(at > loss) & (rows.microbatch[at] == rows.microbatch[loss])]
        if len(after):
            yield loss, int(after[0])


def _whole_inputs(rows: StepRows, equal: Bools) -> set[str]:
    """Embeddings that both runs give the same whole numbers, whenever they are called."""
    words, names = rows.match.words, rows.of_call("name")
    embeds = np.array(["embed" in word.lower() for word in words.type] + [False])[rows.of_call("type")]
    inputs = rows.phase_is("forward") & rows.slot_starts("input") & rows.kind_is("module") & embeds
    whole = np.array([word.startswith(("int", "uint")) for word in words.dtype] + [False])

    def is_same(half: Half) -> Bools:
        return np.asarray(whole[half.dtype] & rows.paired & equal)

    same = is_same(rows.target) & is_same(rows.reference)
    others = {words.name[code] for code in names[inputs & ~same].tolist()}
    return {words.name[code] for code in names[inputs & same].tolist()} - others
