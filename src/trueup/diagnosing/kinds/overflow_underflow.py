"""Values left the range of their dtype: infinities and NaN, ceilings, or small ones gone to zero."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.dtype_or_rounding import may_compute_in
from trueup.diagnosing.kinds.rule import Found, KindRule, origin_reason
from trueup.diagnosing.kinds.thresholds import LOST_WIDELY, MIN_NUMBERS, MOSTLY, NEAR_SMALLEST
from trueup.numerics.dtypes import DTYPES
from trueup.types.arrays import Floats
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode

_NARROW = ("float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_UNDERFLOWS = ("float16", "float8_e5m2", "float8_e4m3fn", "bfloat16", "float32")
_SCALED = ("backward", "param_grad")
"""phases whose values are those of a scaled loss"""
_OF_NAN = (CauseCode.EMPTY_ROW,)
_COUNTS = ("num_nan", "num_posinf", "num_neginf")


def _overflow(evidence: Evidence) -> Found | None:
    t, r = evidence.target, evidence.reference
    if t is None or r is None or not t.is_floating:
        return None
    counts = {name: [int(np.nan_to_num(k.statistic(name))) for k in (t, r)] for name in _COUNTS}
    more = {name: target - reference for name, (target, reference) in counts.items()}
    # A mask's -inf is no overflow.
    if (
        more["num_nan"] <= 0
        and more["num_posinf"] <= 0
        and (more["num_neginf"] <= 0 or counts["num_neginf"][1])
    ):
        return None
    facts = {
        f"{name}_{side}": n
        for name, both in counts.items()
        for side, n in zip(("target", "reference"), both, strict=True)
    }
    scale = evidence.target_run.loss_scale
    is_scaled = bool(scale and scale > 1 and evidence.origin.phase in _SCALED)
    # the softmax of a row that is all masked is NaN, and no infinity; a scale of 1 makes nothing too large
    without = [] if more["num_nan"] > 0 else [CauseCode.EMPTY_ROW]
    without += [] if scale is None else [CauseCode.LOSS_SCALE]
    return Found(
        rank=EvidenceRank.FITTED,
        sentence=origin_reason(evidence, KindReason.NOT_FINITE, numel=t.numel, loss_scale=scale, **facts),
        causes=(CauseCode.LOSS_SCALE_TOO_LARGE, CauseCode.BEYOND_RANGE) if is_scaled else (),
        without=tuple(without),
    )


def _ceiling(evidence: Evidence) -> Found | None:
    """Saturated at the largest value of a narrow dtype."""
    t, r = evidence.target, evidence.reference
    if t is None or r is None or not t.is_floating:
        return None
    top, there = (max(abs(k.statistic("maximum")), abs(k.statistic("minimum"))) for k in (t, r))
    for name in _NARROW:
        if top == DTYPES[name].max and there > top * (1 + DTYPES[name].eps):
            sentence = origin_reason(evidence, KindReason.SATURATED, dtype=name, target=top, reference=there)
            return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, without=_OF_NAN)
    return None


def _underflow(evidence: Evidence) -> Found | None:
    """Zeros exactly where the reference's magnitude is below what a dtype holds that may have computed it:
    small gradients that never arrive are zero too."""
    a, b, t = evidence.target_values, evidence.reference_values, evidence.target
    if a is None or b is None or a.shape != b.shape or t is None or not t.is_floating:
        return None
    lost = (a == 0) & (b != 0) & np.isfinite(b)
    num = int(lost.sum())
    if num < MIN_NUMBERS:
        return None
    largest = float(np.abs(b[lost]).max())
    found = _threshold(a, b, largest)
    if found is None or not may_compute_in(evidence, found[0]):
        return None
    dtype, limit = found
    facts = {"largest": largest, "limit": limit, "normal": limit == DTYPES[dtype].smallest_normal}
    sentence = origin_reason(evidence, KindReason.UNDERFLOW, lost=num, numel=a.size, dtype=dtype, **facts)
    rank = EvidenceRank.EVERY_ELEMENT if num >= LOST_WIDELY * a.size else EvidenceRank.CONSISTENT
    return Found(rank=rank, sentence=sentence, without=_OF_NAN)


def _threshold(a: Floats, b: Floats, largest: float) -> tuple[str, float] | None:
    """The dtype whose smallest value parts the lost from the kept."""
    finite = np.isfinite(b) & (b != 0)
    small = np.abs(b) <= largest
    gone = float((a[finite & small] == 0).mean()) if (finite & small).any() else 0.0
    if gone < MOSTLY:
        return None
    for name in _UNDERFLOWS:
        entry = DTYPES[name]
        subnormal = entry.smallest_normal * entry.eps * 2
        for limit in (subnormal, entry.smallest_normal):
            if limit / NEAR_SMALLEST <= largest <= limit * (1 + entry.eps):
                return name, limit
    return None


RULE = KindRule(
    code=KindCode.OVERFLOW_UNDERFLOW,
    family=KindClass.NUMERICAL,
    looks=(_underflow, _ceiling, _overflow),
    causes=(CauseCode.BEYOND_RANGE, CauseCode.LOSS_SCALE, CauseCode.EMPTY_ROW),
    in_phases={CauseCode.LOSS_SCALE: _SCALED},
    advice=AdviceCode.WIDER_RANGE,
    place="zeros below a dtype's smallest number look like a mask; their size says that none was applied",
)
