"""A layer with an activation, gated or not, told by computing it again from what its projections gave.

Gate and factor exchanged: the reference f(a) b, the target f(b) a, with one function f for both. Another
activation: f(a) and g(a), or f(a) b and g(a) b."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.rule import Found, origin_reason
from trueup.diagnosing.kinds.solved import Solved
from trueup.diagnosing.kinds.thresholds import (
    ACTIVATION_RESIDUAL,
    CHANGE_EXPLAINS,
    CHANGE_LEAVES,
    CLOSE_ROUNDINGS,
    MIN_NUMBERS,
    REPRODUCED,
)
from trueup.numerics.activations import ACTIVATIONS, GATES
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindCode

MAX_SOURCES = 12
"""places of gate and factor that are tried"""


def gate_fault(evidence: Evidence) -> Solved | None:
    """Gate and factor exchanged; None where the site is no gated product, or both sides make the same."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or evidence.origin.phase != "forward":
        return None
    gap = float(np.linalg.norm(t - r))
    if t.size < MIN_NUMBERS or not np.isfinite(gap) or gap == 0:
        return None
    if (activation := _other_activation(evidence, t, r) or _other_gate(evidence, t, r)) is not None:
        return activation
    for a, b in _sources(evidence, t.shape):
        for name, function in ACTIVATIONS.items():
            plain, other = function(a) * b, function(b) * a
            reproduced = float(np.linalg.norm(plain - r)) <= REPRODUCED * float(np.linalg.norm(r))
            left = float(np.linalg.norm((t - r) - (other - plain))) / gap
            if reproduced and left <= CHANGE_LEAVES:
                rank = EvidenceRank.EVERY_ELEMENT if left < CHANGE_EXPLAINS else EvidenceRank.FITTED
                sentence = origin_reason(evidence, KindReason.GATE_FOR_UP, activation=name)
                without = (CauseCode.VIEW_FOR_TRANSPOSE,)
                found = Found(rank=rank, measure=1 - left, sentence=sentence, without=without)
                return Solved(kind=KindCode.TRANSPOSED_OR_PERMUTED, found=found)
    return None


def _other_activation(evidence: Evidence, t: Floats, r: Floats) -> Solved | None:
    """Each side is another known function of what one projection gave, times what another gave or not."""
    if not evidence.origin.slot.startswith("input"):
        return None  # of what a call returns its own inputs tell
    plain = ((a, None) for a in _of_shape(evidence, t.shape))
    for a, b in (*plain, *_sources(evidence, t.shape)):
        made = {name: function(a) if b is None else function(a) * b for name, function in ACTIVATIONS.items()}
        target, reference = (which_activation(made, y, evidence.roundoff) for y in (t, r))
        if target is not None and reference is not None and target != reference:
            sentence = origin_reason(evidence, KindReason.ACTIVATION, target=target, reference=reference)
            found = Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
            return Solved(kind=KindCode.CONSTANT_ARGUMENT, found=found)
    return None


def _other_gate(evidence: Evidence, t: Floats, r: Floats) -> Solved | None:
    """A module multiplies its input by one number a channel, or a token, each side by another known function
    of what a projection inside gave (squeeze and excitation)."""
    inputs = [pair.given for pair in evidence.surroundings.inputs if pair.given is not None]
    if not evidence.origin.slot.startswith("output") or t.ndim < 2 or len(inputs) != 1:
        return None
    x = evidence.values_of(inputs[0]) if inputs[0].shape == t.shape else None
    if x is None or not np.isfinite(x).all():
        return None
    for u in _gates_of(evidence, t.shape):
        made = {name: x * function(u) for name, function in GATES.items()}
        target, reference = (which_activation(made, y, evidence.roundoff) for y in (t, r))
        if target is not None and reference is not None and target != reference:
            sentence = origin_reason(evidence, KindReason.ACTIVATION, target=target, reference=reference)
            found = Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
            return Solved(kind=KindCode.CONSTANT_ARGUMENT, found=found)
    return None


def _gates_of(evidence: Evidence, shape: tuple[int, ...]) -> Iterator[Floats]:
    """What calls inside gave with one number for several elements of this shape."""
    for pair in evidence.surroundings.nearby:
        known = pair.reference or pair.target
        if known is None or not pair.slot.startswith("output") or not known.is_floating:
            continue
        fits = len(known.shape) == len(shape) and all(
            a in (1, b) for a, b in zip(known.shape, shape, strict=True)
        )
        values = known.values() if fits and known.shape != shape else None
        if values is not None and np.isfinite(values).all():
            yield values


def which_activation(made: Mapping[str, Floats], y: Floats, roundoff: float) -> str | None:
    """The function that gives ``y`` to rounding, twice as closely as any other; None where there is none."""
    size = float(np.linalg.norm(y))
    if size == 0:
        return None
    left = {name: float(np.linalg.norm(one - y)) / size for name, one in made.items()}
    best = min(left, key=lambda name: left[name])
    others = [v for name, v in left.items() if name != best]
    limit = max(CLOSE_ROUNDINGS * roundoff, ACTIVATION_RESIDUAL)
    return best if left[best] <= limit and min(others) > 2 * left[best] else None


def _of_shape(evidence: Evidence, shape: tuple[int, ...]) -> Iterator[Floats]:
    """What calls inside gave of this shape."""
    known = [
        either
        for pair in evidence.surroundings.nearby
        if pair.slot.startswith("output") and (either := pair.reference or pair.target) is not None
        if either.is_floating and either.shape == shape
    ]
    for one in known[:MAX_SOURCES]:
        values = one.values()
        if values is not None and np.isfinite(values).all():
            yield values


def _sources(evidence: Evidence, shape: tuple[int, ...]) -> Iterator[tuple[Floats, Floats]]:
    """Gate and factor as the reference takes them: halves of what one projection gave, or what two gave."""
    known = [
        either
        for pair in evidence.surroundings.nearby
        if pair.slot.startswith("output") and (either := pair.reference or pair.target) is not None
        if either.is_floating and len(either.shape) == len(shape) > 0 and either.shape[:-1] == shape[:-1]
    ]
    tried = 0
    for one in known:
        values = one.values() if one.shape[-1] == 2 * shape[-1] and tried < MAX_SOURCES else None
        if values is not None:
            tried += 1
            first, second = np.split(values, 2, axis=-1)
            yield first, second
            yield second, first
    for one, other in pairwise(known):
        values, more = (
            x.values() if x.shape == shape and tried < MAX_SOURCES else None for x in (one, other)
        )
        if values is not None and more is not None:
            tried += 1
            yield values, more
            yield more, values
