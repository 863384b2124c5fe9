"""The reference itself gives another value every time it is run."""

from __future__ import annotations

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.kinds.naming import named, number
from trueup.types.finding import Kind

ALLOWED = 3.0
"""times the largest difference seen between plain repeats"""


def rule(evidence: Evidence) -> Kind | None:
    """Named where a plain repeat of the reference differs at this site about as much as the target does."""
    repeat = evidence.repeat
    vectors = evidence.vectors
    rel = vectors.rel if vectors is not None else evidence.origin.rel_l2
    if repeat is None or not repeat > 0 or rel is None or not 0 < rel <= ALLOWED * repeat:
        return None
    said = (
        f"the reference differs from its own repeat here by {number(repeat)}, the target by {number(rel)} "
        "(relative l2): not more than chance"
    )
    return named("non_determinism", 0.9 if rel <= 1.5 * repeat else 0.75, said, evidence)
