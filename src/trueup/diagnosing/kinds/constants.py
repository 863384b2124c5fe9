"""Solves for a constant of a known function from its input and outputs: eps of a norm, temperature of a
softmax, rate of a dropout, which activation it is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.gated import which_activation
from trueup.diagnosing.kinds.norms import norm_fault
from trueup.diagnosing.kinds.rule import Found, origin_reason
from trueup.diagnosing.kinds.thresholds import (
    CHANCE_Z,
    CLOSE_ROUNDINGS,
    DRAWN_VALUES,
    DROPOUT_SCALE,
    FEW_NUMBERS,
    FITTED_ROWS,
    FULL_SHARE,
    MANY_NUMBERS,
    NEAR_ONE,
    NEARLY,
    NEARLY_ALL,
    REPRODUCED,
    SMALLEST_PROBABILITY,
)
from trueup.numerics.activations import ACTIVATIONS
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import KindReason
from trueup.types.finding import EvidenceRank


def fitted_constants(evidence: Evidence) -> Iterator[Found]:
    """Constants that differ, of every function this site may be."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.size < MANY_NUMBERS:
        return
    if evidence.origin.phase != "forward":
        return
    yield from _dropout_rate(evidence, t, r)
    if not (np.isfinite(t).all() and np.isfinite(r).all()):
        return
    x = _input(evidence, t.shape)
    if x is not None and np.isfinite(x).all():
        yield from norm_fault(evidence, x, t, r)
        yield from _activation(evidence, x, t, r)
    yield from _softmax(evidence, t, r)


def _found(evidence: Evidence, code: KindReason, target: float | str, reference: float | str) -> Found:
    sentence = origin_reason(evidence, code, target=target, reference=reference)
    return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)


def _input(evidence: Evidence, shape: tuple[int, ...]) -> Floats | None:
    """The one input of the output's shape, if both sides worked on the same."""
    if evidence.origin.slot.startswith("input"):
        return None  # an input is not made of its call's inputs
    for pair in evidence.surroundings.inputs:
        if pair.agree is not False and pair.given is not None and pair.given.shape == shape:
            return evidence.values_of(pair.given)
    return None


# -- softmax, dropout, activations ------------------------------------------


def _softmax(evidence: Evidence, t: Floats, r: Floats) -> Iterator[Found]:
    """log t = s log r + a constant per row: another scale before the softmax."""
    if t.ndim < 2 or t.shape[-1] < 3:
        return
    a, b = (values.reshape(-1, t.shape[-1])[:FITTED_ROWS] for values in (t, r))
    if (a < 0).any() or (b < 0).any():
        return
    if max(np.abs(side.sum(axis=1) - 1).max() for side in (a, b)) > REPRODUCED:
        return
    seen = (a > SMALLEST_PROBABILITY) & (b > SMALLEST_PROBABILITY)
    if seen.sum() < FEW_NUMBERS:
        return
    logs = [np.where(seen, np.log(np.where(seen, v, 1.0)), 0.0) for v in (a, b)]
    count = np.maximum(seen.sum(axis=1, keepdims=True), 1)
    x, y = (np.where(seen, v - v.sum(axis=1, keepdims=True) / count, 0.0) for v in logs)
    square = float((y * y).sum())
    if square == 0:
        return
    slope = float((x * y).sum()) / square
    left = float(np.sqrt(np.square(x - slope * y).sum() / square))
    error = max(left / np.sqrt(seen.sum()), evidence.roundoff)
    rounded = CLOSE_ROUNDINGS * evidence.roundoff * np.sqrt(seen.sum() / square)
    even = left < REPRODUCED * max(1.0, abs(slope))
    even = even and left <= max((1.0 - FULL_SHARE) * abs(slope - 1), rounded)  # else it explains a part
    if even and slope > 0 and abs(slope - 1) > 2 * CHANCE_Z * error:
        yield _found(evidence, KindReason.SOFTMAX_FACTOR, slope, 1.0)


def _dropout_rate(evidence: Evidence, t: Floats, r: Floats) -> Iterator[Found]:
    """Shares of zeros that chance does not bring together, scattered, the rest scaled to match. A side that
    drops nothing shows no rate: it may be in a mode in which none does."""
    p, q = float((t == 0).mean()), float((r == 0).mean())
    if p == q or max(p, q) >= NEARLY_ALL or t.size < DRAWN_VALUES:
        return
    x = _input(evidence, t.shape)
    if x is None or not all(((side == 0) & (x != 0)).any() for side in (t, r)):
        return
    chance = np.sqrt((p * (1 - p) + q * (1 - q)) / t.size)
    if abs(p - q) > CHANCE_Z * chance and _drops(x, t, p) and _drops(x, r, q):
        yield _found(evidence, KindReason.DROPOUT_RATE, p, q)


def _drops(x: Floats, y: Floats, rate: float) -> bool:
    """Whether y is x / (1 - rate) where it is not zero."""
    kept = (y != 0) & (x != 0)
    if not kept.any() or rate >= 1:
        return False
    ratio = y[kept] / x[kept]
    middle = float(np.median(ratio))
    even = float((np.abs(ratio / middle - 1) < NEAR_ONE).mean()) if middle else 0.0
    return even > NEARLY and abs(middle * (1 - rate) - 1) < DROPOUT_SCALE


def _activation(evidence: Evidence, x: Floats, t: Floats, r: Floats) -> Iterator[Found]:
    """Which of the known functions each side is."""
    sample = slice(None, None, max(x.size // (1 << 16), 1))
    a, b, c = (v.ravel()[sample] for v in (x, t, r))
    target, reference = (_which(a, y, evidence.roundoff) for y in (b, c))
    if target is not None and reference is not None and target != reference:
        yield _found(evidence, KindReason.ACTIVATION, target, reference)


def _which(x: Floats, y: Floats, rounding: float) -> str | None:
    with np.errstate(over="ignore", invalid="ignore"):
        return which_activation({name: f(x) for name, f in ACTIVATIONS.items()}, y, rounding)
