"""A few isolated elements differ by one bit; everything else is equal."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.facts import Stored
from trueup.diagnosing.kinds.rule import Found, KindRule, whole_origin_reason
from trueup.diagnosing.kinds.thresholds import FLIPPED_ELEMENTS, MANY_NUMBERS, ROUNDING_BITS
from trueup.numerics.dtypes import DTYPES, bits_from_array, float64_from_array
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode


def _flipped(evidence: Evidence) -> Found | None:
    """At most a few elements differ, each by a single bit too high to be rounding."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None or not evidence.same_shape or t.dtype != r.dtype or t.numel < MANY_NUMBERS:
        return None
    a, b = t.raw, r.raw
    if a is None or b is None or DTYPES[t.dtype].kind == "complex":
        return None
    unsigned = np.dtype(f"u{DTYPES[t.dtype].itemsize}")
    different = np.flatnonzero((a.view(unsigned) != b.view(unsigned)).ravel())
    if not 0 < len(different) <= FLIPPED_ELEMENTS:
        return None
    bits = bits_from_array(a.reshape(-1)[different]) ^ bits_from_array(b.reshape(-1)[different])
    if not all(int(x).bit_count() == 1 for x in bits):
        return None
    places = [int(x).bit_length() - 1 for x in bits]
    if min(places) < ROUNDING_BITS:
        return None
    first = int(different[0])
    return Found(
        rank=EvidenceRank.EVERY_ELEMENT if len(different) == 1 else EvidenceRank.FITTED,
        sentence=whole_origin_reason(
            evidence,
            KindReason.BIT_FLIPPED,
            elements=len(different),
            numel=t.numel,
            index=[str(int(i)) for i in np.unravel_index(first, t.shape)],
            target=_value(a, first, t.dtype),
            reference=_value(b, first, t.dtype),
            bit=places[0],
            dtype=t.dtype,
        ),
    )


def _value(raw: Stored, at: int, dtype: str) -> float:
    return float(float64_from_array(raw.reshape(-1)[at : at + 1], dtype)[0])


RULE = KindRule(
    code=KindCode.BIT_FLIP,
    family=KindClass.NUMERICAL,
    looks=(_flipped,),
    causes=(CauseCode.FAULTY_MEMORY, CauseCode.CORRUPTED_TRANSFER),
    advice=AdviceCode.RUN_ELSEWHERE,
    place="one element that differs looks like a mask too; nothing but a flip changes one bit",
)
