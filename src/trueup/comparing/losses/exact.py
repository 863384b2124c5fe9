"""How far the reference's own loss is from the exact one, where that can be worked out again.

A loss is one number in float32, even with activations in a coarser dtype: what rounding of bfloat16 explains
would hide a cross-entropy in bfloat16. Given the reference's logits, in a replay or because both runs came to
the same bits, the target's loss is held to the exactness that the reference's shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trueup.comparing.losses.calls import around_loss, loss_records
from trueup.comparing.losses.cross_entropy import reproduced
from trueup.comparing.losses.inputs import LossInputs
from trueup.comparing.metrics import Metrics
from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import StepRows
from trueup.comparing.thresholds import FAR_FROM_FLOAT32, FLOAT32, LOSS_ROUNDINGS, LOSS_TIMES
from trueup.comparing.tolerance import Bound
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView, TraceSource, step_view
from trueup.types.arrays import Floats


def loss_bounds(book: StepView, given: set[int]) -> dict[int, float]:
    """Summary of each loss of the reference's step -> relative difference that its exactness allows.

    ``given`` are the reference's records that went into the target's calls; a loss whose logits are not among
    them has no bound, nor one that is no plain cross-entropy.
    """
    values = dict(loss_records(book, "value"))
    of_loss = LossInputs.of(book)
    labels, masks = of_loss.labels, of_loss.masks
    found: dict[int, float] = {}
    for microbatch, record in values.items():
        summary, value = book.content[record], book.value(record)
        if summary is None or value is None or value.size != 1 or microbatch not in labels:
            continue
        number = float(value.ravel()[0])
        counted = float((labels[microbatch] != of_loss.ignore_index).sum())
        parts = float(len(values))
        for logits, numbers in _logits(book, microbatch, labels[microbatch].size, given):
            loss = reproduced(
                number,
                logits,
                labels[microbatch],
                ignore_index=of_loss.ignore_index,
                masks=[masks[microbatch]] if microbatch in masks else [],
                numbers=[*numbers, parts, parts * counted],
            )
            if loss is not None:
                own = abs(loss.loss - number) / abs(number)
                found[summary] = allowed_error(own, labels[microbatch].size)
                undivided = _before_accumulation(book, microbatch, number, len(values))
                found |= dict.fromkeys(undivided, found[summary])
                break
    return found


def with_exact_losses(
    bound: Bound, rows: StepRows, metrics: Metrics, reference: TraceSource, pair: StepPair
) -> Bound:
    """The bound, no wider than that exactness where both runs make a loss of the same bits."""
    same = rows.paired & metrics.bits_equal
    if not (rows.phase_is("loss") & rows.slot_is("value") & rows.paired & ~same).any():
        return bound
    view = step_view(reference, pair.reference_step, pair.reference_rank)
    allowed = loss_bounds(view, set(rows.reference.record[same].tolist()))
    made = rows.paired & ~same & rows.phase_is("loss", "forward") & ~rows.slot_starts("input")
    at = np.flatnonzero(made & np.isin(rows.reference.summary, list(allowed)))
    if not len(at):
        return bound
    relative, absolute = bound.relative.copy(), bound.absolute.copy()
    exact = np.array([allowed[one] for one in rows.reference.summary[at].tolist()])
    relative[at] = np.fmin(relative[at], exact)
    absolute[at] = np.fmin(absolute[at], exact * metrics.norm[at])
    return replace(bound, relative=relative, absolute=absolute)


def is_beyond_float32(relative: float | None) -> bool:
    """Whether a relative difference of a loss is nearer to a rounding of a half precision than to those of
    float32."""
    return relative is not None and relative > FAR_FROM_FLOAT32


def allowed_error(own: float, tokens: int) -> float:
    """The relative error that a target's loss may have, by the reference's own; never less than a sum over
    tokens in float32 makes."""
    return max(LOSS_TIMES * own, FLOAT32 * (LOSS_ROUNDINGS + math.sqrt(tokens)))


def _before_accumulation(book: StepView, microbatch: int, loss: float, microbatches: int) -> Iterator[int]:
    """Summaries of numbers that calls returned and that, divided by the number of microbatches, are the
    loss."""
    for _, slot, record in around_loss(book, microbatch):
        summary, value = book.content[record], book.value(record)
        if slot.startswith("input") or summary is None or value is None or value.size != 1:
            continue
        if np.float32(np.float32(value.ravel()[0]) / np.float32(microbatches)) == np.float32(loss):
            yield summary


def _logits(
    book: StepView, microbatch: int, num_labels: int, given: set[int]
) -> Iterator[tuple[Floats, list[float]]]:
    """What a criterion was given, or the root returned, that has a row for each label; and single numbers
    beside it."""
    beside = [(r, slot.startswith("input")) for _, slot, r in around_loss(book, microbatch)]
    numbers = [
        float(value.ravel()[0])
        for record, inward in beside
        if inward and (value := book.value(record)) is not None and value.size == 1
    ]
    for record, _ in beside:
        shape, dtype = book.shape(record) or (), book.dtype(record)
        if record not in given or dtype not in DTYPES or DTYPES[dtype].kind != "float" or len(shape) < 2:
            continue
        value = book.value(record) if int(np.prod(shape[:-1])) == num_labels else None
        if value is not None:
            yield value, numbers
