"""Which differences of a replay are more than rounding.

A record is charged when ``||t - r||`` is beyond what rounding of one call allows (``comparing.tolerance``, or
three times the noise of a benign variant's replay), or when it is *biased*: rounding scatters, a wrong factor
leans to one side. ``bias_z`` counts by how many standard errors ``a = <t,r>/<r,r>`` is from 1; in coarse
dtypes a fault is often smaller than its rounding and is told by that alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trueup.comparing.coherence import ROUNDED
from trueup.diagnosing.replay.noise import ReplayNoise
from trueup.diagnosing.replay.step import ReplayedStep
from trueup.store.view import CLIPPED
from trueup.types.codes import LeftFree

NOISE_FACTOR = 3.0
"""times the largest difference that a benign variant shows at a site"""
BOUND_SHARE = 0.25
"""of the dtype bound is allowed even where a benign variant shows less: another kernel rounds elsewhere"""
BIAS_Z = 8.0
"""standard errors; 4 times those of a benign variant where there is one"""
BIAS_NOISE_FACTOR = 4.0
BIAS_ROUNDOFFS = 1 / 64
"""a scale nearer to 1 than so many unit roundoffs is nothing to act on"""


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


def differences(step: ReplayedStep, noise: ReplayNoise | None) -> list[Difference]:
    """Everything that differed, judged, in execution order."""
    columns = ("record", "call", "phase", "slot", "state", "reason", "difference", "norm", "scale", "bias_z")
    found = []
    for row in step.forced.select(*columns, "reference_record").iter_rows():
        record, call, phase, slot, state, reason, difference, norm, scale, z, other = row
        if state == "equal" or other is None:
            continue
        if difference is None:
            difference, norm = step.estimate(record)
            if not difference > 0:
                continue
        found.append(
            _judged(step, noise, record, call, phase, slot, reason, difference, norm, scale, z, other)
        )
    return list(_without_flips(step, found))


def _judged(
    step: ReplayedStep,
    noise: ReplayNoise | None,
    record: int,
    call: int,
    phase: str,
    slot: str,
    reason: str | None,
    difference: float,
    norm: float | None,
    scale: float | None,
    z: float | None,
    other: int,
) -> Difference:
    size = norm or 0.0
    relative = 0.0 if difference == 0 else difference / size if size else math.inf
    tolerance, measured = _tolerance(step, noise, record, phase, slot, size, other)
    bound = step.loss_bound(other) if phase in ("forward", "loss") else None
    exact = bound is not None and tolerance is not None and not measured and bound < tolerance
    if exact:
        tolerance = bound
    score = _score(relative, tolerance) if step.is_floating(record) else math.inf
    roundoff = step.roundoff(record) or 0.0
    least = max(BIAS_ROUNDOFFS * roundoff, min(ROUNDED, 8 * roundoff))
    if slot == CLIPPED[1]:
        least = max(least, step.gradients_apart)  # the norm all are divided by moves by as much
    leans = z is not None and scale is not None and abs(scale - 1) > least
    allowed_z = _allowed_z(step, noise, phase, slot, other)
    biased = leans and z is not None and abs(z) > allowed_z
    if biased and score <= 1 and z is not None:
        score = abs(z) / allowed_z
    return Difference(
        record=record,
        call=call,
        phase=phase,
        slot=slot,
        left_free=None if reason is None else LeftFree(reason),
        rel_l2=relative,
        tolerance=tolerance,
        score=score,
        scale=scale,
        bias_z=z,
        biased=biased,
        reference_record=other,
        measured=measured,
        exact=exact,
    )


def _score(relative: float, tolerance: float | None) -> float:
    if tolerance is None or tolerance == 0:
        return math.inf if relative > 0 else 0.0
    return relative / tolerance


def _tolerance(
    step: ReplayedStep,
    noise: ReplayNoise | None,
    record: int,
    phase: str,
    slot: str,
    norm: float,
    other: int,
) -> tuple[float | None, bool]:
    """The largest relative difference allowed, and whether it was measured."""
    row = step.row_of_record.get(record)
    bound = float("nan") if row is None else float(step.bounds[row])
    if math.isnan(bound) or not step.is_floating(record):
        return None, False
    allowed = bound / norm if norm else math.inf
    seen = None if noise is None else noise.at(_site(step, phase, slot, other))
    if seen is None:
        return allowed, False
    return max(NOISE_FACTOR * seen.rel_l2, BOUND_SHARE * allowed), True


def _allowed_z(step: ReplayedStep, noise: ReplayNoise | None, phase: str, slot: str, other: int) -> float:
    seen = None if noise is None else noise.at(_site(step, phase, slot, other))
    return BIAS_Z if seen is None else max(BIAS_Z, BIAS_NOISE_FACTOR * seen.bias_z)


def _site(step: ReplayedStep, phase: str, slot: str, other: int) -> tuple[str, str, str]:
    return step.reference.places[int(step.reference.record_call[other])], phase, slot


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
