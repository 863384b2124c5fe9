"""The target holds what this site held at an earlier step or microbatch."""

from __future__ import annotations

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import explained, sureness
from trueup.diagnosing.kinds.naming import named, subject
from trueup.types.finding import Kind


def rule(evidence: Evidence) -> Kind | None:
    """Named where t equals an earlier value of the same site that the reference has left behind."""
    if evidence.target is None or evidence.reference is None or evidence.target.numel == 0:
        return None
    elsewhere = evidence.elsewhere
    candidates = [
        *((f"step {s} of the target", k) for s, k in elsewhere.target_earlier),
        *((f"step {s} of the reference", k) for s, k in elsewhere.reference_earlier),
    ]
    if evidence.origin.phase in ("forward", "batch"):
        own = evidence.surroundings.microbatch
        candidates += [
            (f"microbatch {m} of the target", k) for m, k in elsewhere.target_microbatches if m < own
        ]
    best: tuple[float, str] | None = None
    for where, known in candidates:
        share = _share(evidence, known)
        if share > 0 and (best is None or share > best[0]):
            best = share, where
    if best is None:
        return None
    share, where = best
    confidence = (0.93 if evidence.target.numel > 1 else 0.5) * sureness(share, start=0.8)
    if confidence <= 0:
        return None
    return named("stale_value", confidence, f"{subject(evidence)} is that of {where}", evidence)


def _share(evidence: Evidence, earlier: Known) -> float:
    """How well the earlier value explains the target; bits first, then values or sketches."""
    target, reference = evidence.target, evidence.reference
    if target is None or reference is None or earlier.same_bits(reference):
        return 0.0
    same = target.same_bits(earlier)
    if same:
        return 1.0
    vectors = evidence.vectors
    other = None if vectors is None else vectors.like(earlier)
    if vectors is None or other is None or length(other - vectors.reference) < vectors.difference / 2:
        return 0.0
    return 0.98 * explained(evidence, vectors, length(vectors.target - other))
