"""A third, more exact run decides which of two differing runs is the less accurate at each site.

The rule is that of PyTorch's compiler tests (``torch._dynamo.utils.same``, torch 2.13), in relative numbers:
the target is no less accurate than the reference where

    error(target) <= m error(reference) + tolerance / 10

both errors against the arbiter, m = 2, or 3 in half precision and for tensors of fewer than 1000 elements, 8
below 501 and 10 below 11, because the error of a few elements is a matter of luck. Mirrored, the same rule
judges the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from trueup.comparing.metrics import NONE, measure
from trueup.comparing.options import CompareOptions
from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import StepRows, rows_from_match
from trueup.comparing.thresholds import (
    ARBITER_LARGE,
    ARBITER_SLACK,
    ARBITER_SMALL,
    ARBITER_SMALLEST,
    ARBITER_TIMES,
    ARBITER_TIMES_HALF,
    ARBITER_TIMES_SMALL,
    ARBITER_TIMES_SMALLEST,
)
from trueup.comparing.values import read_values
from trueup.errors import NothingCompared
from trueup.matching import match_step
from trueup.matching.codes import Codes
from trueup.numerics.dtypes import DTYPES, unit_roundoffs
from trueup.store import StepTables, TraceSource
from trueup.types.arrays import Floats
from trueup.types.codes import NoteCode
from trueup.types.reason import Reason, reason

JUDGED = ("neither", "target", "reference")
NEITHER, TARGET, REFERENCE = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arbitration:
    """Columns beside Rows; NaN and -1 where the arbiter has nothing to say."""

    target: Floats
    """relative difference of the target from the arbiter"""
    reference: Floats
    less_accurate: Codes
    """codes of JUDGED"""


def arbitrate(
    rows: StepRows,
    tolerance: Floats,
    sides: tuple[TraceSource, TraceSource],
    arbiter: TraceSource,
    pair: StepPair,
    options: CompareOptions,
) -> Arbitration:
    """Both runs against the arbiter, at every row of the comparison.

    Raises:
        NothingCompared: the arbiter has not this step and rank of the reference.
    """
    ranks = arbiter.steps().get(pair.reference_step, [])
    if pair.reference_rank not in ranks:
        raise NothingCompared(
            f"the arbiter {arbiter.path} has no step {pair.reference_step} of rank {pair.reference_rank}: "
            "capture the same steps and ranks of it"
        )
    exact = arbiter.read(pair.reference_step, pair.reference_rank)
    target = _errors(sides[0], pair.step, pair.rank, rows.target.tables, exact, arbiter, pair, options)
    reference = _errors(
        sides[1],
        pair.reference_step,
        pair.reference_rank,
        rows.reference.tables,
        exact,
        arbiter,
        pair,
        options,
    )
    target_errors, reference_errors = _at(target, rows.target.record), _at(reference, rows.reference.record)
    return Arbitration(
        target=target_errors,
        reference=reference_errors,
        less_accurate=_judge(rows, target_errors, reference_errors, tolerance),
    )


def _errors(
    source: TraceSource,
    step: int,
    rank: int,
    tables: StepTables,
    exact: StepTables,
    arbiter: TraceSource,
    pair: StepPair,
    options: CompareOptions,
) -> Floats:
    """Relative difference from the arbiter of every record of one run."""
    whole = tables if "sketch" in tables.summaries.columns else source.read(step, rank)
    rows = rows_from_match(whole, exact, match_step(whole, exact))
    metrics = measure(rows)
    here = StepPair(
        step=step, rank=rank, reference_step=pair.reference_step, reference_rank=pair.reference_rank
    )
    read_values(rows, metrics, np.zeros(len(rows)), source, arbiter, here, options)
    errors = np.full(whole.records.height, np.nan)
    known = rows.paired & (metrics.evidence != NONE)
    errors[rows.target.record[known]] = metrics.rel_l2[known]
    return errors


def _at(values: Floats, record: Codes) -> Floats:
    if not len(values):
        return np.full(len(record), np.nan)
    return np.where(record >= 0, values[np.maximum(record, 0)], np.nan)


def _judge(rows: StepRows, target: Floats, reference: Floats, tolerance: Floats) -> Codes:
    size = np.nan_to_num(rows.reference.numel, nan=np.inf)
    half = (
        np.nan_to_num(unit_roundoffs(rows.match.words.dtype)[rows.reference.dtype]) >= DTYPES["float16"].eps
    )
    m = np.select(
        [size <= ARBITER_SMALLEST, size <= ARBITER_SMALL, (size < ARBITER_LARGE) | half],
        [ARBITER_TIMES_SMALLEST, ARBITER_TIMES_SMALL, ARBITER_TIMES_HALF],
        ARBITER_TIMES,
    )
    slack = np.where(np.isfinite(tolerance), tolerance, 0.0) / ARBITER_SLACK
    judged = np.select(
        [target > m * reference + slack, reference > m * target + slack], [TARGET, REFERENCE], NEITHER
    )
    return np.where(np.isnan(target) | np.isnan(reference), -1, judged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arbitrated:
    """What the arbiter decides over all sites."""

    path: str
    less_accurate: Mapping[str, int]
    """by JUDGED: number of sites"""
    first: Mapping[str, str]
    """by JUDGED: the first of those sites"""
    sentence: Reason


def arbitrated(path: str, counts: Mapping[str, int], first: Mapping[str, str]) -> Arbitrated:
    """Counts of all steps and ranks together."""
    numbers = {name: counts.get(name, 0) for name in JUDGED}
    sites = {f"first_{name}": first[name] for name in ("target", "reference") if name in first}
    return Arbitrated(
        path=path,
        less_accurate=numbers,
        first=first,
        sentence=reason(NoteCode.LESS_ACCURATE, path=path, **numbers, **sites),
    )


def tally(arbitration: Arbitration, sites: pl.Series) -> tuple[dict[str, int], dict[str, str]]:
    """How many sites were judged each way, and the first of each."""
    counts = {name: int((arbitration.less_accurate == code).sum()) for code, name in enumerate(JUDGED)}
    first = {}
    for code, name in enumerate(JUDGED):
        at = np.flatnonzero(arbitration.less_accurate == code)
        if len(at):
            first[name] = str(sites[int(at[0])])
    return counts, first
