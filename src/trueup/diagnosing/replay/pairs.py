"""The pairs of a step of target and reference, whether they are of one implementation or of two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from trueup.comparing.implementations import Implementations
from trueup.comparing.pairing import StepPair
from trueup.matching import StepMatch, match_step
from trueup.matching.records import RecordPairs
from trueup.store import StepTables, Trace


def paired_step(
    traces: tuple[Trace, Trace], tables: tuple[StepTables, StepTables], pair: StepPair
) -> StepMatch:
    """Target and reference paired; of two implementations with their weights and layouts known."""
    match = match_step(*tables)
    if match.bridge is None:
        return match
    return Implementations(*traces, None).match(*tables, pair)


def replayed_step(
    traces: tuple[Trace, Trace],
    tables: tuple[StepTables, StepTables],
    pair: StepPair,
    forced: pl.DataFrame,
) -> StepMatch:
    """The pairs of a replayed step.

    Of two implementations they are the plan's own: a replay breaks the flow that would tell them anew, since
    what a call gives and what the next one takes are no longer one tensor.
    """
    match = paired_step(traces, tables, pair)
    if match.bridge is None:
        return match
    known = forced.filter(pl.col("reference_record").is_not_null()).unique("record").sort("record")
    target, reference = (known[name].to_numpy().astype(np.int64) for name in ("record", "reference_record"))
    records = RecordPairs(
        target=target,
        reference=reference,
        other_slot=np.zeros(len(target), bool),
        only_target=np.setdiff1d(np.arange(tables[0].records.height), target),
        only_reference=np.setdiff1d(np.arange(tables[1].records.height), reference),
    )
    return replace(match, records=records)


def of_two_implementations(target: Trace, reference: Trace) -> bool:
    """Whether the first step both have shows that names alone do not pair them."""
    for step, ranks in target.steps().items():
        common = sorted(set(ranks) & set(reference.steps().get(step, [])))
        if common:
            tables = target.read(step, common[0]), reference.read(step, common[0])
            return match_step(*tables).bridge is not None
    return False
