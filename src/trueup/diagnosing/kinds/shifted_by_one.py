"""The same numbers, one (or a few) places further along a dimension."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.kinds.fitting import close, sureness
from trueup.diagnosing.kinds.naming import named, percent, subject
from trueup.diagnosing.kinds.solved import solved
from trueup.types.finding import Kind

SHIFTS = (1, -1, 2, -2)
_PROBE = 64
"""Indices of every other dimension that are looked at first."""
MIN_NUMBERS = 6


def rule(evidence: Evidence) -> Kind | None:
    """Named where t[i + s] = r[i] along one dimension for nearly every i, and t[i] = r[i] for far fewer."""
    turned = solved(evidence, "shifted_by_one")
    if turned is not None:
        return named("shifted_by_one", turned.confidence, turned.sentence, evidence)
    t, r = evidence.target_values, evidence.reference_values
    if t is None or r is None or t.shape != r.shape or t.size < MIN_NUMBERS:
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
    if best is None or best[0] - in_place < 0.3:
        return None
    share, dim, shift = best
    confidence = 0.96 * sureness(share, start=0.75, full=0.95)
    way = f"{abs(shift)} place{'s' if abs(shift) > 1 else ''} {'later' if shift > 0 else 'earlier'}"
    said = (
        f"{subject(evidence)} holds the reference's numbers {way} "
        f"along dimension {dim} ({percent(share)} agree so, {percent(in_place)} in place)"
    )
    return named("shifted_by_one", confidence, said, evidence) if confidence > 0 else None


def _agreement(t: Floats, r: Floats, dim: int, shift: int, rounding: float) -> float | None:
    """Share of elements that agree after the shift; None where a first look shows that they do not."""
    probe = tuple(
        slice(None) if d == dim else slice(0, _PROBE if t.ndim > 1 else None) for d in range(t.ndim)
    )
    if t.size > 1 << 14 and t.ndim > 1 and _share(t[probe], r[probe], dim, shift, rounding) < 0.6:
        return None
    if t.ndim == 1 and t.size > 1 << 14 and _share(t[: 1 << 12], r[: 1 << 12], 0, shift, rounding) < 0.6:
        return None
    return _share(t, r, dim, shift, rounding)


def _share(t: Floats, r: Floats, dim: int, shift: int, rounding: float) -> float:
    length = t.shape[dim] - abs(shift)
    if length <= 0:
        return 0.0
    moved = np.take(t, np.arange(max(shift, 0), max(shift, 0) + length), axis=dim)
    still = np.take(r, np.arange(max(-shift, 0), max(-shift, 0) + length), axis=dim)
    return float(close(moved, still, rounding).mean()) if moved.size else 0.0
