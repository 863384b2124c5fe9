"""A gated layer whose gate and factor are exchanged, told by computing it again from what its projections
gave: the reference as f(a) b, the target as f(b) a, with one function f for both."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.rule import Found, origin_reason
from trueup.diagnosing.kinds.solved import Solved
from trueup.diagnosing.kinds.thresholds import CHANGE_EXPLAINS, CHANGE_LEAVES, MIN_NUMBERS, REPRODUCED
from trueup.numerics.activations import ACTIVATIONS
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
