"""One vector of each row is taken, at other places than in the reference: the last token for the last that is
no padding, or the token before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.rule import Found, Look, said
from trueup.diagnosing.kinds.thresholds import MAX_SOURCE, MIN_NUMBERS
from trueup.types.arrays import Floats, Ints
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import EvidenceRank

_CAUSES = (CauseCode.COUNTED_WITH_PADDING,)
_OF_LAYOUTS = (CauseCode.OTHER_LAYOUT, CauseCode.VIEW_FOR_TRANSPOSE, CauseCode.CONVERTED_FOR_ANOTHER_LAYOUT)


def places_taken(*, shifted: bool) -> Look:
    """A look for places that are all one further or one before (``shifted``), or others."""

    def look(evidence: Evidence) -> Found | None:
        t, r = evidence.target_values, evidence.reference_values
        if t is None or r is None or t.shape != r.shape or t.ndim < 2 or t.size < MIN_NUMBERS:
            return None
        if evidence.origin.phase != "forward" or evidence.window is not None:
            return None
        around = evidence.surroundings
        for pair in (*around.inputs, *around.nearby):
            x = pair.given
            if not pair.agree or x is None or x.numel > MAX_SOURCE or x.dtype != (evidence.target or x).dtype:
                continue
            values = x.values() if len(x.shape) == t.ndim + 1 else None
            if values is None or values.shape[:1] + values.shape[2:] != t.shape:
                continue
            own, other = _places(t, values), _places(r, values)
            if own is None or other is None or np.array_equal(own, other):
                continue
            apart = np.unique(own - other).tolist()
            if (apart in ([1], [-1])) is not shifted:
                return None
            numbers = {"first": int(own.min()), "last": int(own.max()), "size": values.shape[1]}
            numbers |= {"other_first": int(other.min()), "other_last": int(other.max())}
            sentence = said(evidence, KindReason.OTHER_PLACES, source=x.name, **numbers)
            found = Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
            return found if shifted else replace(found, causes=_CAUSES, without=_OF_LAYOUTS)
        return None

    return look


def _places(taken: Floats, source: Floats) -> Ints | None:
    """Where each row's vector stands in its row of the source, bit for bit; None where one stands nowhere, or
    at several places."""
    same = (source == taken[:, None]).reshape(*source.shape[:2], -1).all(axis=-1)
    return same.argmax(axis=1) if (same.sum(axis=1) == 1).all() else None
