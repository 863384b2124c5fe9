"""The sign of everything, or of some rows or columns, is the other way round."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import close, explained, sureness, weight
from trueup.diagnosing.kinds.naming import named, percent, subject
from trueup.diagnosing.kinds.solved import solved
from trueup.types.finding import Kind

Bools = NDArray[np.bool_]

MIN_NUMBERS = 4


def rule(evidence: Evidence) -> Kind | None:
    """Named where t = -r, or where the magnitudes agree and only signs differ."""
    turned = solved(evidence, "wrong_sign")
    if turned is not None:
        return named("wrong_sign", turned.confidence, turned.sentence, evidence)
    vectors = evidence.vectors
    if vectors is None:
        return _from_statistics(evidence)
    if vectors.norm == 0 or vectors.num_values < MIN_NUMBERS:
        return None
    share = explained(evidence, vectors, length(vectors.target + vectors.reference))
    if share > 0.7:
        confidence = 0.96 * sureness(share, start=0.7) * weight(vectors)
        return named("wrong_sign", confidence, f"{subject(evidence)} is minus the reference's", evidence)
    t, r = evidence.target_values, evidence.reference_values
    return None if t is None or r is None else _some(evidence, t, r)


def _some(evidence: Evidence, t: Floats, r: Floats) -> Kind | None:
    """Magnitudes agree, signs do not everywhere."""
    probe = (slice(0, 64),) * t.ndim
    if t.shape != r.shape or not close(np.abs(t[probe]), np.abs(r[probe]), evidence.roundoff).all():
        return None
    if not close(np.abs(t), np.abs(r), evidence.roundoff).all():
        return None
    flipped = (t * r < 0) & (t != r)
    present = r != 0
    share = float(flipped.sum() / max(present.sum(), 1))
    if flipped.sum() < MIN_NUMBERS or share == 0:
        return None
    where = _where(flipped, present)
    said = f"the magnitudes agree, but {percent(share)} of the signs are the other way round"
    if where is None:
        return named("wrong_sign", 0.6, said, evidence)
    return named("wrong_sign", 0.93, f"{said}: {where}", evidence)


def _where(flipped: Bools, present: Bools) -> str | None:
    """The dimension along which whole slices are flipped."""
    for dim in reversed(range(flipped.ndim)):
        others = tuple(d for d in range(flipped.ndim) if d != dim)
        all_of = (flipped | ~present).all(axis=others)
        any_of = np.asarray(flipped.any(axis=others))
        if any_of.any() and (any_of <= all_of).all() and not any_of.all():
            chosen = np.flatnonzero(any_of)
            which = f"first {chosen[0]}, last {chosen[-1]}"
            return f"in {len(chosen)} of {flipped.shape[dim]} indices of dimension {dim} ({which})"
    return None


def _from_statistics(evidence: Evidence) -> Kind | None:
    t, r = evidence.target, evidence.reference
    if t is None or r is None or t.shape != r.shape or t.numel < MIN_NUMBERS:
        return None
    size = max(abs(r.statistic("minimum")), abs(r.statistic("maximum")))
    slack = 8 * max(evidence.roundoff, 1e-9) * size
    mirrored = (("minimum", "maximum"), ("maximum", "minimum"), ("mean", "mean"))
    if not all(abs(t.statistic(a) + r.statistic(b)) <= slack for a, b in mirrored):
        return None
    if (
        not abs(r.statistic("mean")) > 4 * slack
        and not abs(r.statistic("minimum") + r.statistic("maximum")) > 4 * slack
    ):
        return None
    return named(
        "wrong_sign", 0.75, f"{subject(evidence)}'s extremes and mean are minus the reference's", evidence
    )
