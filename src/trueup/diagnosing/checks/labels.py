"""Token ids, labels and the first loss: in range, shifted once, not all ignored, about ln(vocabulary)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from trueup.batches.labels import IGNORE_INDEX, whole_labels
from trueup.comparing.losses.calls import reduction_of
from trueup.diagnosing.checks.alignment import (
    first_loss_problem,
    labelled_padding,
    shift_of_labels,
    shows_shift,
)
from trueup.diagnosing.checks.outcome import CheckedSite, CheckOutcome, FunctionCheck, Judge, Measured
from trueup.diagnosing.checks.run import CheckedRun, place_of
from trueup.diagnosing.step_calls import INTEGERS, embedded
from trueup.store import StepView
from trueup.types.arrays import Array
from trueup.types.codes import CheckCode as Code
from trueup.types.reason import Reason, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """One microbatch: what went into the model and what the loss was made with."""

    view: StepView
    microbatch: int
    ids: dict[str, Any] | None
    labels: dict[str, Any]
    parts: tuple[dict[str, Any], ...]
    """the labels' records: several of a loss worked out in chunks"""
    mask: dict[str, Any] | None
    loss: float | None
    vocabulary: int | None
    ignore_index: int
    reduction: str | None
    num_microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What one batch shows: problems first, then facts."""

    problem: Reason | None = None
    shift: int | None = None
    shows_shift: bool = False
    """there are enough labels beside ids to tell a shift"""
    ignored: float = 0.0
    loss: float | None = None


def _judge(run: CheckedRun, judge: Judge) -> CheckOutcome:
    for step, ranks in run.steps.items():
        for rank in ranks:
            outside = _looked_up_outside(run, step, rank)
            if outside is not None:
                return judge.failed(outside[0], places=(outside[1],))
    batches = [b for step, ranks in run.steps.items() for rank in ranks for b in _batches(run, step, rank)]
    if not batches:
        return _without(run, judge)
    seen = [(batch, _look(run, batch)) for batch in batches]
    ignored = max(one.ignored for _, one in seen)
    numbers: Measured = {
        "batches": len(batches),
        "vocabulary": batches[0].vocabulary,
        "shift": seen[0][1].shift,
        "ignored": ignored,
        "first_loss": seen[0][1].loss,
    }
    wrong = [(batch, one.problem) for batch, one in seen if one.problem is not None]
    if wrong:
        batch, problem = wrong[0]
        place = place_of(batch.view, batch.labels, problem)
        return judge.failed(problem, places=(place, *_input_place(batch)), numbers=numbers)
    fitting = sum(one.shift is not None for _, one in seen)
    if not fitting:
        why = Code.NOT_NEXT_TOKEN if any(one.shows_shift for _, one in seen) else Code.SHIFT_UNKNOWN
        return judge.nothing(reason(why), numbers=numbers, notes=_notes(seen))
    size, step = batches[0].vocabulary, batches[0].view.step
    fit = reason(
        Code.LABELS_FIT,
        ignored=ignored,
        first_loss=seen[0][1].loss,
        vocabulary=size,
        expected=math.log(size) if size and step == 0 else None,
        step=step,
        num=fitting,
        total=len(seen),
        is_in_range=all(one.vocabulary is not None for one in batches),
    )
    return judge.passed(fit, numbers=numbers, notes=_notes(seen))


def _batches(run: CheckedRun, step: int, rank: int) -> Iterator[_Batch]:
    view = run.view(step, rank)
    labels = view.frame_of("loss").filter(pl.col("slot").str.split(".").list.first() == "labels")
    parts = labels.sort("record").partition_by("call", maintain_order=True)
    losses = {row["call"]: row for row in view.frame_of("loss", "value").iter_rows(named=True)}
    integers = view.frame_of("forward").filter(pl.col("dtype").is_in(INTEGERS))
    roots = integers.filter(
        (pl.col("kind") == "module") & pl.col("parent").is_null() & pl.col("slot").str.starts_with("input")
        & (pl.col("mode") == "train") & (pl.col("shape").list.len() == 2)
    )  # fmt: skip
    sizes = embedded(view)
    for row, *others in (of_call.to_dicts() for of_call in parts):
        before = roots.filter(
            (pl.col("record") < row["record"]) & (pl.col("microbatch") == row["microbatch"])
        )
        candidates = before.to_dicts()
        ids = next((r for r in candidates if r["digest"] in sizes), None)
        ids = ids or next((r for r in candidates if "mask" not in r["slot"] and r["dtype"] != "bool"), None)
        loss_arguments = json.loads(row["arguments"] or "{}")
        loss = losses.get(row["call"])
        yield _Batch(
            view=view,
            microbatch=row["microbatch"],
            ids=ids,
            labels=row,
            parts=(row, *others),
            mask=next((r for r in candidates if "attention_mask" in r["slot"]), None),
            loss=None if loss is None else loss["maximum"],
            vocabulary=sizes.get(ids["digest"]) if ids is not None else None,
            ignore_index=loss_arguments.get("ignore_index", IGNORE_INDEX),
            reduction=reduction_of(loss_arguments),
            num_microbatches=len(losses),
        )


def _looked_up_outside(run: CheckedRun, step: int, rank: int) -> tuple[Reason, CheckedSite] | None:
    """The first id that an embedding has no row for; also of a step that ended there."""
    view = run.view(step, rank)
    integers = view.frame_of("forward").filter(pl.col("dtype").is_in(INTEGERS))
    sizes = embedded(view)
    for row in integers.filter(pl.col("slot").str.starts_with("input")).iter_rows(named=True):
        size = sizes.get(row["digest"])
        if size is None or (row["minimum"] >= 0 and row["maximum"] < size):
            continue
        ids = run.values(step, rank, row)
        found = reason(Code.IDS_OUT_OF_RANGE, minimum=row["minimum"], maximum=row["maximum"], size=size)
        if ids is not None and ids.ndim == 2:
            at, column = (int(where[0]) for where in np.nonzero((ids < 0) | (ids >= size)))
            place = {"value": int(ids[at, column]), "row": at, "column": column}
            found = reason(Code.ID_OUTSIDE, size=size, **place)
        outside = reason(Code.OF_BATCH, found, step=step, rank=rank, microbatch=row["microbatch"])
        return outside, place_of(view, row)
    return None


def _look(run: CheckedRun, batch: _Batch) -> _Seen:
    rank, step = batch.view.rank, batch.view.step
    ids = run.values(step, rank, batch.ids) if batch.ids is not None else None
    labels = _whole(run, batch, ids)
    if labels is None:
        return _Seen(problem=None)
    used = labels.ravel() != batch.ignore_index
    ignored = 1.0 - float(used.mean()) if used.size else 1.0
    loss = _mean_loss(batch, int(used.sum()))
    if not used.any():
        return _Seen(problem=_of_batch(batch, reason(Code.ALL_IGNORED, index=batch.ignore_index)))
    problem = _out_of_range(batch, labels[labels != batch.ignore_index])
    shift, shows = None, False
    if ids is not None:
        shows = shows_shift(ids, labels, batch.ignore_index)
        shift, wrong = shift_of_labels(ids, labels, batch.ignore_index)
        problem = problem or wrong or _on_padding(run, batch, ids, labels, shift)
    if batch is not None and step == 0 and batch.microbatch == 0:
        problem = problem or first_loss_problem(loss, batch.vocabulary)
    problem = None if problem is None else _of_batch(batch, problem)
    return _Seen(problem=problem, shift=shift, shows_shift=shows, ignored=ignored, loss=loss)


def _whole(run: CheckedRun, batch: _Batch, ids: Array | None) -> Array | None:
    """All labels of the loss; None where values were not kept."""
    values = [run.values(batch.view.step, batch.view.rank, part) for part in batch.parts]
    parts = [part for part in values if part is not None]
    return whole_labels(parts, ids, ignore_index=batch.ignore_index) if len(parts) == len(values) else None


def _of_batch(batch: _Batch, problem: Reason) -> Reason:
    step, rank = batch.view.tables.step, batch.view.tables.rank
    return reason(Code.OF_BATCH, problem, step=step, rank=rank, microbatch=batch.microbatch)


def _out_of_range(batch: _Batch, labels: Array) -> Reason | None:
    ids, size = batch.ids, batch.vocabulary
    if size is None:
        return None
    if ids is not None and (ids["minimum"] < 0 or ids["maximum"] >= size):
        return reason(Code.IDS_OUT_OF_RANGE, minimum=ids["minimum"], maximum=ids["maximum"], size=size)
    if labels.min() < 0 or labels.max() >= size:
        return reason(Code.LABELS_OUT_OF_RANGE, minimum=labels.min(), maximum=labels.max(), size=size)
    return None


def _on_padding(
    run: CheckedRun, batch: _Batch, ids: Array, labels: Array, shift: int | None
) -> Reason | None:
    """Labels that are padding by the attention mask and yet count; one a row, an end of text, is common."""
    if batch.mask is None or shift != 1:
        return None
    mask = run.values(batch.view.step, batch.view.rank, batch.mask)
    if mask is None or mask.shape != ids.shape or mask.all():
        return None
    return labelled_padding(mask, labels, batch.ignore_index)


def _mean_loss(batch: _Batch, num_used: int) -> float | None:
    """The mean over counted positions, as far as it can be told by what the program divided.

    A sum may have been divided already, by positions that also other microbatches count (transformers'
    Trainer); a mean by the number of microbatches. What chance gives tells: an untrained model's mean is
    about ln(vocabulary), its sum many times that, and its share of a step a part of it.
    """
    loss, size = batch.loss, batch.vocabulary
    if loss is None or size is None or size < 2:
        return loss if loss is None or batch.reduction != "sum" else loss / max(num_used, 1)
    if batch.reduction == "sum" and first_loss_problem(loss, size) is not None:
        return loss / max(num_used, 1)
    whole = loss * batch.num_microbatches
    is_share = loss < 0.5 * math.log(size) <= whole and first_loss_problem(whole, size) is None
    return whole if is_share else loss


def _notes(seen: list[tuple[_Batch, _Seen]]) -> tuple[Reason, ...]:
    batch, first = seen[0]
    if first.loss is None or batch.vocabulary is None or batch.view.step != 0:
        return ()
    expected = math.log(batch.vocabulary)
    if first.loss >= 0.5 * expected:
        return ()
    return (reason(Code.FIRST_LOSS_LOW, loss=first.loss, vocabulary=batch.vocabulary, expected=expected),)


def _input_place(batch: _Batch) -> tuple[CheckedSite, ...]:
    return () if batch.ids is None else (place_of(batch.view, batch.ids, reason(Code.THE_INPUTS)),)


def _without(run: CheckedRun, judge: Judge) -> CheckOutcome:
    losses = sum(
        run.view(s, r).frame_of("loss", "value").height for s, ranks in run.steps.items() for r in ranks
    )
    if not losses:
        return judge.undecided(reason(Code.NO_LOSS))
    options = run.source.manifest.get("options") or {}
    if "labels" not in (options.get("store_values_of") or []):
        return judge.undecided(reason(Code.NO_LABELS))
    return judge.nothing(reason(Code.NO_INTEGERS))


CHECK = FunctionCheck("labels", "Ids, labels and the first loss make sense", _judge)
