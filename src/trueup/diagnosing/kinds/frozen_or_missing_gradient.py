"""A gradient that the reference has does not arrive in the target, or is zero there."""

from __future__ import annotations

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.kinds.naming import named, subject
from trueup.types.finding import Kind


def rule(evidence: Evidence) -> Kind | None:
    """Named where the target has no gradient, or only zeros, and the reference has one; and the other way
    round."""
    if evidence.origin.phase not in ("backward", "param_grad", "optimizer", "param"):
        return None
    facts = evidence.parameter
    frozen = facts is not None and facts.target_trainable is False and facts.reference_trainable is True
    if evidence.origin.phase in ("optimizer", "param"):
        return (
            None
            if not frozen
            else _named(evidence, 0.9, "is not trainable in the target (requires_grad is off)")
        )
    t, r = evidence.target, evidence.reference
    if frozen:
        return _named(evidence, 0.97, "is missing: the parameter does not require one (requires_grad is off)")
    if t is None and r is not None:
        return _named(evidence, 0.95, "is missing: nothing arrives in backward")
    if t is not None and r is None:
        return _named(evidence, 0.8, "is there, and the reference has none")
    if t is None or r is None:
        return None
    if _all_zero(t) and not _all_zero(r):
        return _named(evidence, 0.95, "is zero everywhere")
    if _all_zero(r) and not _all_zero(t):
        return _named(evidence, 0.7, "is not zero, as the reference's is")
    return None


def _named(evidence: Evidence, confidence: float, predicate: str) -> Kind:
    facts = evidence.parameter
    who = f" of {facts.fqn}" if facts is not None and evidence.origin.phase == "param_grad" else ""
    what = "the parameter" if evidence.origin.phase in ("optimizer", "param") else subject(evidence) + who
    return named("frozen_or_missing_gradient", confidence, f"{what} {predicate}", evidence)


def _all_zero(known: Known) -> bool:
    """Every element is zero; an empty tensor has none."""
    zeros = known.statistic("num_zero")
    return known.numel > 0 and (zeros == known.numel or known.statistic("l2_norm") == 0)
