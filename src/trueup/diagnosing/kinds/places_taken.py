"""One vector of each row is taken, at other places than in the reference: the last token for the last that is
no padding, or the token before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.rule import Found, Look, origin_reason
from trueup.diagnosing.kinds.thresholds import MAX_SOURCE, MIN_NUMBERS
from trueup.types.arrays import Floats, Ints
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import EvidenceRank

_CAUSES = (CauseCode.COUNTED_WITH_PADDING,)


def places_taken(*, shifted: bool) -> Look:
    """A look for places that are all one further or one before (``shifted``), or others."""

    def look(evidence: Evidence) -> Found | None:
        t, r = evidence.target_values, evidence.reference_values
        if t is None or r is None or t.shape != r.shape or t.ndim < 2 or t.size < MIN_NUMBERS:
            return None
        if evidence.origin.phase != "forward" or evidence.window is not None:
            return None
        for name, values in _sources(evidence, t.shape):
            own, other = _places(t, values), _places(r, values)
            if own is not None and other is not None and not np.array_equal(own, other):
                is_shift = np.unique(own - other).tolist() in ([1], [-1])
                return (
                    finding_of(evidence, name, (own, other, values.shape[1])) if is_shift is shifted else None
                )
        return None

    def finding_of(evidence: Evidence, name: str, places: tuple[Ints, Ints, int]) -> Found:
        own, other, size = places
        numbers = {"first": int(own.min()), "last": int(own.max()), "size": size}
        numbers |= {"other_first": int(other.min()), "other_last": int(other.max())}
        sentence = origin_reason(evidence, KindReason.OTHER_PLACES, source=name, **numbers)
        found = Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
        return found if shifted else replace(found, causes=_CAUSES)

    return look


def _sources(evidence: Evidence, shape: tuple[int, ...]) -> Iterator[tuple[str, Floats]]:
    """Tensors at hand, the same in both runs, that hold several such vectors a row."""
    around = evidence.surroundings
    for pair in (*around.inputs, *around.nearby):
        x = pair.given
        if not pair.agree or x is None or x.numel > MAX_SOURCE or len(x.shape) != len(shape) + 1:
            continue
        values = x.values() if x.dtype == (evidence.target or x).dtype else None
        if values is not None and values.shape[:1] + values.shape[2:] == shape:
            yield x.name, values


def _places(taken: Floats, source: Floats) -> Ints | None:
    """Where each row's vector stands in its row of the source, bit for bit; None where one stands nowhere, or
    at several places."""
    same = (source == taken[:, None]).reshape(*source.shape[:2], -1).all(axis=-1)
    return same.argmax(axis=1) if (same.sum(axis=1) == 1).all() else None
