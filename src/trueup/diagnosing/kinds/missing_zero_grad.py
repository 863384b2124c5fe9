"""The gradient still holds the step before's."""

from __future__ import annotations

import numpy as np

from trueup.diagnosing.evidence import Evidence, Vectors
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import explained, sureness, weight
from trueup.diagnosing.kinds.naming import named, number, subject
from trueup.types.finding import Kind


def rule(evidence: Evidence) -> Kind | None:
    """Named where t = t of the step before + r, up to what clipping multiplies both by."""
    vectors = evidence.vectors
    if vectors is None or evidence.origin.phase != "param_grad" or evidence.origin.slot == "local":
        return None
    earlier = evidence.elsewhere.target_earlier
    if not earlier or vectors.norm == 0:
        return None
    step, known = earlier[0]
    before = vectors.like(known)
    if before is None or length(before) <= 8 * vectors.rounding * vectors.norm:
        return None
    share, factor = _share(evidence, vectors, before)
    confidence = 0.98 * sureness(share, start=0.6) * weight(vectors)
    if confidence <= 0:
        return None
    said = f"{subject(evidence)} is the reference's plus what step {step} left in it"
    if abs(factor - 1) > 0.01:
        said += f", both times {number(factor)} (clipping)"
    return named("missing_zero_grad", confidence, said, evidence)


def _share(evidence: Evidence, vectors: Vectors, before: Floats) -> tuple[float, float]:
    plain = explained(evidence, vectors, length(vectors.target - vectors.reference - before))
    if evidence.origin.slot != "clipped" or plain > 0.95:
        return plain, 1.0
    both = vectors.reference + before
    square = float(np.dot(both, both))
    factor = float(np.dot(vectors.target, both)) / square if square > 0 else 0.0
    if factor <= 0:
        return plain, 1.0
    clipped = explained(evidence, vectors, length(vectors.target - factor * both))
    return (clipped, factor) if clipped > plain else (plain, 1.0)
