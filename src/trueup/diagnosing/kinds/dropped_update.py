"""The parameter is after the update what it was before."""

from __future__ import annotations

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.kinds.naming import named
from trueup.types.finding import Kind


def rule(evidence: Evidence) -> Kind | None:
    """Named where the target's parameter keeps every bit through an update that moves the reference's."""
    if evidence.origin.phase not in ("optimizer", "param"):
        return None
    facts = evidence.parameter
    if facts is None:
        return None
    if evidence.origin.phase == "optimizer":
        after = facts.after("param")
        if after is None or after.target is None:
            return _never_stepped(evidence)
        pairs = [(facts.before.target, after.target), (facts.before.reference, after.reference)]
    else:
        earlier = (evidence.elsewhere.target_earlier, evidence.elsewhere.reference_earlier)
        pairs = [
            (past[0][1] if past else None, now)
            for past, now in zip(earlier, (evidence.target, evidence.reference), strict=True)
        ]
    moved = [_moved(before, after) for before, after in pairs]
    if moved != [False, True]:
        return None
    gradient = facts.gradient()
    said = f"{facts.fqn} is bit for bit what it was before the update; the reference's moved"
    if gradient is not None and gradient.target is not None and gradient.target.statistic("l2_norm") > 0:
        said += ", though its gradient is not zero"
    return named("dropped_update", 0.97, said + _why(evidence), evidence, causes=_causes(evidence))


def _never_stepped(evidence: Evidence) -> Kind | None:
    facts = evidence.parameter
    after = None if facts is None else facts.after("param")
    if facts is None or after is None or after.reference is None:
        return None
    said = f"no optimizer of the target updates {facts.fqn}; the reference's does"
    return named("dropped_update", 0.95, said + _why(evidence), evidence, causes=_causes(evidence))


def _moved(before: Known | None, after: Known | None) -> bool | None:
    if before is None or after is None:
        return None
    same = before.same_bits(after)
    return None if same is None else not same


def _why(evidence: Evidence) -> str:
    facts = evidence.parameter
    if evidence.target_run.skipped and not evidence.reference_run.skipped:
        return " (the target's optimizer step was skipped)"
    if facts is not None and facts.target_grouped is False:
        return " (it is in no optimizer group)"
    return ""


def _causes(evidence: Evidence) -> tuple[str, ...]:
    if evidence.target_run.skipped and not evidence.reference_run.skipped:
        return ("the gradient scaler found an infinity and skipped the step",)
    facts = evidence.parameter
    if facts is not None and facts.target_grouped is False:
        return ("the parameter is missing from the optimizer's groups",)
    return ()
