"""Losses of a replay, whose logits are the reference's, held to what a mean of rounded tokens makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from trueup.comparing.losses.mean import MicrobatchLosses
from trueup.comparing.thresholds import FLOAT32
from trueup.diagnosing.replay.judge import Difference
from trueup.diagnosing.replay.step import ReplayedStep
from trueup.numerics.dtypes import unit_roundoffs
from trueup.store import StepView


def held_to_their_mean(step: ReplayedStep, found: list[Difference]) -> list[Difference]:
    """The same differences, those of losses by the bound of ``comparing.losses.mean`` where it is tighter."""
    differing = {
        one.reference_record: one for one in found if _is_loss(step, one.call) and one.slot == "value"
    }
    if not differing or any(one.measured or one.scale is None for one in differing.values()):
        return found
    losses = _losses(step)
    if losses is None or losses.coarsest <= FLOAT32 or not losses.error > losses.tolerance:
        return found
    tolerance = losses.tolerance
    return [
        replace(one, tolerance=tolerance, score=one.rel_l2 / tolerance)
        if one.reference_record in differing
        and one.rel_l2 is not None
        and one.tolerance is not None
        and tolerance < min(one.tolerance, one.rel_l2)
        else one
        for one in found
    ]


def _is_loss(step: ReplayedStep, call: int) -> bool:
    return step.target.kind[call] == "loss"


def _losses(step: ReplayedStep) -> MicrobatchLosses | None:
    """Of all microbatches of the step whose logits the target was given."""
    rows = step.forced.filter(pl.col("reference_record").is_not_null())
    given = set(rows.filter(pl.col("state").cast(pl.String) != "free")["reference_record"].to_list())
    view = step.reference
    found, dtypes = [], set()
    columns = rows.select("call", "slot", "state", "scale", "reference_record").iter_rows()
    for call, slot, state, scale, record in columns:
        value = view.value(record) if _is_loss(step, call) and slot == "value" else None
        if value is None or value.size != 1:
            continue
        logits = _logits_before(view, record)
        summary = None if logits is None else view.summary(logits)
        if logits not in given or summary is None or (state != "equal" and scale is None):
            return None
        number, size = float(value.ravel()[0]), (summary["minimum"] or 0.0, summary["maximum"] or 0.0)
        factor = 1.0 if state == "equal" else scale
        found.append((number * factor, number, summary["numel"] / summary["shape"][-1], max(map(abs, size))))
        dtypes.add(view.dtype(record))
    if not found or len(dtypes) != 1 or not all(one[1] for one in found):
        return None
    target, reference, tokens, largest = np.array(found).T
    before = unit_roundoffs([view.dtype(one) or "" for one in _floating_before(view)])
    return MicrobatchLosses(
        target=target,
        reference=reference,
        tokens=tokens,
        largest=largest,
        coarsest=float(np.nanmax(before, initial=0.0)),
        own=float(unit_roundoffs(sorted(map(str, dtypes)))[0]),
    )


def _logits_before(view: StepView, loss: int) -> int | None:
    """The last tensor that a call returned before a loss was made."""
    return next(
        (
            record
            for record in range(loss - 1, -1, -1)
            if view.phase[record] == "forward"
            and view.slot[record].startswith("output")
            and (summary := view.summary(record)) is not None
            and summary["numel"] > 1
            and not np.isnan(unit_roundoffs([summary["dtype"]])[0])
        ),
        None,
    )


def _floating_before(view: StepView) -> Iterator[int]:
    return (record for record, phase in enumerate(view.phase) if phase in ("param", "forward"))
