"""Which differences of a replay are more than rounding.

A record is charged when ``||t - r||`` is beyond what rounding of one call allows (``comparing.tolerance``, or
three times the noise of a benign variant's replay), or when it is *biased*: rounding scatters, a wrong factor
is biased. ``bias_z`` counts by how many standard errors ``a = <t,r>/<r,r>`` is from 1; in coarse
dtypes a fault is often smaller than its rounding and is told by that alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from trueup.comparing.thresholds import FACTOR_ROUNDED
from trueup.diagnosing.replay.noise import ReplayNoise, Site, SiteNoise
from trueup.diagnosing.replay.step import ReplayedStep
from trueup.diagnosing.thresholds import (
    BIAS_FLOAT32,
    BIAS_NOISE_FACTOR,
    BIAS_ROUNDOFFS,
    BIAS_Z,
    BOUND_SHARE,
    NOISE_FACTOR,
)
from trueup.store.view import CLIPPED
from trueup.types.codes import LeftFree


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One record that was not the reference's before it was overwritten."""

    record: int
    call: int
    phase: str
    slot: str
    left_free: LeftFree | None
    """why the program's values were kept"""
    rel_l2: float | None
    tolerance: float | None
    score: float
    """error over what is allowed; above 1 it is charged"""
    scale: float | None
    bias_z: float | None
    biased: bool
    reference_record: int | None
    measured: bool
    """against a benign variant, not a bound"""
    exact: bool = False
    """a loss, held to the exactness that the reference's own shows"""
    peers: int = 0
    """modules of its kind that agree bit for bit, where it is charged for standing alone"""


class ForcedRow(NamedTuple):
    """A row of ``forced`` (docs/trace-format.md) that has a record of the reference."""

    record: int
    call: int
    phase: str
    slot: str
    state: str
    reason: str | None
    difference: float | None
    norm: float | None
    scale: float | None
    bias_z: float | None
    reference_record: int


def differences(step: ReplayedStep, noise: ReplayNoise | None) -> list[Difference]:
    """Everything that differed, judged, in execution order."""
    found = []
    known = step.forced.filter(pl.col("reference_record").is_not_null())
    for row in map(ForcedRow._make, known.select(*ForcedRow._fields).iter_rows()):
        if row.state == "equal":
            continue
        difference, norm = row.difference, row.norm
        if difference is None:
            difference, norm = step.estimate(row.record)
            if not difference > 0:
                continue
        found.append(_judged(step, noise, row, difference, norm or 0.0))
    return list(_without_flips(step, found))


# In one piece: what raises or lowers a score, one after another.
def _judged(
    step: ReplayedStep, noise: ReplayNoise | None, row: ForcedRow, difference: float, norm: float
) -> Difference:
    seen = None if noise is None else noise.at(_site(step, row))
    relative = 0.0 if difference == 0 else difference / norm if norm else math.inf
    tolerance = _tolerance(step, row, norm, seen)
    measured = seen is not None and tolerance is not None
    bound = step.loss_bound(row.reference_record) if row.phase in ("forward", "loss") else None
    exact = bound is not None and tolerance is not None and not measured and bound < tolerance
    if exact:
        tolerance = bound
    score = _score(relative, tolerance) if step.is_floating(row.record) or relative == 0 else math.inf
    bias_score = _bias_score(step, row, seen)
    is_inside = row.phase in ("forward", "backward")
    if 1 < score < math.inf and is_inside and _only_hidden(step, row, norm, tolerance):
        score, bias_score = 0.0, 0.0
    if bias_score > 1 and score <= 1:
        score = bias_score
    if difference == 0 and is_inside and step.hides_all_by_infinity(row.record, row.reference_record):
        score = math.inf  # what else it hides is the same
    return Difference(
        record=row.record,
        call=row.call,
        phase=row.phase,
        slot=row.slot,
        left_free=None if row.reason is None else LeftFree(row.reason),
        rel_l2=relative,
        tolerance=tolerance,
        score=score,
        scale=row.scale,
        bias_z=row.bias_z,
        biased=bias_score > 1,
        reference_record=row.reference_record,
        measured=measured,
        exact=exact,
    )


def _only_hidden(step: ReplayedStep, row: ForcedRow, norm: float, tolerance: float | None) -> bool:
    """Whether the difference is that of tokens which the model's mask hides: padding, of which a query that
    may see nothing makes another thing in every kernel."""
    seen = step.shown(row.record, row.reference_record)
    return seen is not None and tolerance is not None and seen[0] <= tolerance * min(norm, seen[1])


def _bias_score(step: ReplayedStep, row: ForcedRow, seen: SiteNoise | None) -> float:
    """Standard errors over those allowed; 0 where the scale is too near to 1 to act on."""
    if row.bias_z is None or row.scale is None:
        return 0.0
    roundoff = step.roundoff(row.record) or 0.0
    least = least_scale(roundoff)
    if row.slot == CLIPPED[1]:
        least = max(least, step.gradients_apart)  # the norm all are divided by moves by as much
    if not abs(row.scale - 1) > least:
        return 0.0
    return abs(row.bias_z) / allowed_bias(seen)


def least_scale(roundoff: float) -> float:
    """How far a scale must be from 1, in a dtype of this unit roundoff, to be acted on."""
    return max(BIAS_ROUNDOFFS * roundoff, min(FACTOR_ROUNDED, BIAS_FLOAT32 * roundoff))


def allowed_bias(seen: SiteNoise | None) -> float:
    """The standard errors a bias may have, by those of a benign variant."""
    return BIAS_Z if seen is None else max(BIAS_Z, BIAS_NOISE_FACTOR * seen.bias_z)


def allowed_size(bound: float, seen: SiteNoise | None) -> float:
    """The relative difference allowed, by the dtype's bound and what a benign variant shows."""
    return bound if seen is None else max(NOISE_FACTOR * seen.rel_l2, BOUND_SHARE * bound)


def _score(relative: float, tolerance: float | None) -> float:
    if tolerance is None or tolerance == 0 or relative == 0:
        return math.inf if relative > 0 else 0.0
    return relative / tolerance


def _tolerance(step: ReplayedStep, row: ForcedRow, norm: float, seen: SiteNoise | None) -> float | None:
    """The largest relative difference allowed; None where no bound is known."""
    at = step.row_of_record.get(row.record)
    bound = float("nan") if at is None else float(step.bounds[at])
    if math.isnan(bound) or not step.is_floating(row.record):
        return None
    return allowed_size(bound / norm if norm else math.inf, seen)


def _site(step: ReplayedStep, row: ForcedRow) -> Site:
    return step.reference.places[int(step.reference.record_call[row.reference_record])], row.phase, row.slot


def _without_flips(step: ReplayedStep, found: list[Difference]) -> Iterator[Difference]:
    """Indices and masks differ where rounding tips a tie: not charged when the same call's numbers differ by
    rounding alone."""
    rounding: set[tuple[int, str, str]] = set()
    wrong: set[tuple[int, str, str]] = set()
    for one in found:
        if step.is_floating(one.record):
            (wrong if one.score > 1 else rounding).add(_side(one))
    for one in found:
        flipped = not step.is_floating(one.record) and _side(one) in rounding - wrong
        if not flipped:
            yield one


def _side(one: Difference) -> tuple[int, str, str]:
    return one.call, one.phase, one.slot.partition(".")[0]
