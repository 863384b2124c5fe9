"""The same numbers, one (or a few) places further along a dimension."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.fitting import close, rank_of
from trueup.diagnosing.kinds.places_taken import places_taken
from trueup.diagnosing.kinds.rule import BEFORE_UPDATE, Found, KindRule, origin_reason
from trueup.diagnosing.kinds.solved import solved
from trueup.diagnosing.kinds.thresholds import (
    FEW_NUMBERS,
    MORE_THAN_IN_PLACE,
    MOST_SHARE,
    PROBED_INDICES,
    PROBED_LARGE,
    PROBED_VALUES,
    SOME_SHARE,
)
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode

SHIFTS = (1, -1, 2, -2)


def _shifted(evidence: Evidence) -> Found | None:
    """t[i + s] = r[i] along one dimension for nearly every i, and t[i] = r[i] for far fewer."""
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.size < FEW_NUMBERS:
        return None
    in_place = float(close(t, r, evidence.roundoff).mean())
    best: tuple[float, int, int] | None = None
    for dim in range(t.ndim):
        for shift in SHIFTS:
            if t.shape[dim] <= 2 * abs(shift):
                continue
            share = _agreement(t, r, dim, shift, evidence.roundoff)
            if share is not None and (best is None or share > best[0]):
                best = share, dim, shift
    if best is None or best[0] - in_place < MORE_THAN_IN_PLACE:
        return None
    share, dim, shift = best
    rank = rank_of(share, least=MOST_SHARE)
    if rank is None:
        return None
    sentence = origin_reason(
        evidence, KindReason.SHIFTED, shift=shift, dim=dim, agree=share, in_place=in_place
    )
    without = (CauseCode.INDEX_OFF_BY_ONE,) if abs(shift) > 1 else ()
    return Found(rank=rank, measure=share, sentence=sentence, without=without)


def _counted_from(evidence: Evidence) -> Found | None:
    """Whole numbers that count up by one along the last dimension, as positions do: wherever both sides do,
    the target's are the same amount from the reference's. As a shift of an arithmetic progression this would
    be told of too, but for its ends, and for what padding stands between."""
    t, r, sides = evidence.target_values, evidence.reference_values, (evidence.target, evidence.reference)
    if t is None or r is None or t.shape != r.shape or not t.ndim:
        return None
    if any(side is None or side.is_floating for side in sides):
        return None
    counts = [np.diff(side, axis=-1) == 1 for side in (t, r)]
    both = np.all(counts, axis=0)
    apart, fewest = (t - r)[..., 1:][both], min(np.count_nonzero(one) for one in counts)
    if fewest < max(FEW_NUMBERS, (1 - SOME_SHARE) * both.size) or apart.size < MOST_SHARE * fewest:
        return None  # other whole numbers that count up here and there
    if not apart[0] or np.any(apart != apart[0]):
        return None
    return Found(
        rank=EvidenceRank.EVERY_ELEMENT,
        sentence=origin_reason(evidence, KindReason.POSITIONS_COUNTED_FROM, offset=int(apart[0])),
        causes=(CauseCode.OTHER_FIRST_POSITION,),
        advice=AdviceCode.COMPARE_FIRST_POSITIONS,
    )


def _agreement(t: Floats, r: Floats, dim: int, shift: int, rounding: float) -> float | None:
    """Share of elements that agree after the shift; None where a first look shows that they do not."""
    if t.size > PROBED_LARGE:
        probe = tuple(
            slice(None)
            if d == dim and t.ndim > 1
            else slice(0, PROBED_INDICES if t.ndim > 1 else PROBED_VALUES)
            for d in range(t.ndim)
        )
        if _share(t[probe], r[probe], dim, shift, rounding) < SOME_SHARE:
            return None
    return _share(t, r, dim, shift, rounding)


def _share(t: Floats, r: Floats, dim: int, shift: int, rounding: float) -> float:
    length = t.shape[dim] - abs(shift)
    if length <= 0:
        return 0.0
    moved = np.take(t, np.arange(max(shift, 0), max(shift, 0) + length), axis=dim)
    still = np.take(r, np.arange(max(-shift, 0), max(-shift, 0) + length), axis=dim)
    return float(close(moved, still, rounding).mean()) if moved.size else 0.0


RULE = KindRule(
    code=KindCode.SHIFTED_BY_ONE,
    family=KindClass.MODEL,
    looks=(solved(KindCode.SHIFTED_BY_ONE), _counted_from, places_taken(shifted=True), _shifted),
    causes=(CauseCode.SHIFTED_TWICE_OR_NEVER, CauseCode.INDEX_OFF_BY_ONE),
    in_phases={CauseCode.SHIFTED_TWICE_OR_NEVER: BEFORE_UPDATE},
    advice=AdviceCode.COUNT_SHIFTS,
    place="a shift is a permutation too, and says more",
)
