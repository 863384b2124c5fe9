"""A gradient that the reference has does not arrive in the target, or is zero there."""

from __future__ import annotations

from dataclasses import replace

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.kinds.rule import Found, KindRule, Needs, said
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode


def _frozen(evidence: Evidence) -> Found | None:
    """The parameter is not trainable in the target alone."""
    facts, phase = evidence.parameter, evidence.origin.phase
    if facts is None or phase not in ("backward", "param_grad", "optimizer", "param"):
        return None
    if facts.target_trainable is not False or facts.reference_trainable is not True:
        return None
    updated = phase in ("optimizer", "param")
    code = KindReason.NOT_TRAINABLE if updated else KindReason.NO_GRADIENT_NOT_TRAINABLE
    rank = EvidenceRank.STATED_NEARBY if updated else EvidenceRank.STATED
    return Found(rank=rank, sentence=said(evidence, code, parameter=facts.fqn))


def _missing(evidence: Evidence) -> Found | None:
    """One side has no gradient, or only zeros."""
    if evidence.origin.phase not in ("backward", "param_grad"):
        return None
    t, r = evidence.target, evidence.reference
    if t is None or r is None:
        missing = t is None
        code = KindReason.NO_GRADIENT if missing else KindReason.NO_GRADIENT_IN_REFERENCE
        rank = EvidenceRank.EVERY_ELEMENT if missing else EvidenceRank.CONSISTENT
    elif _all_zero(t) and not _all_zero(r):
        code, rank = KindReason.ZERO_GRADIENT, EvidenceRank.EVERY_ELEMENT
    elif _all_zero(r) and not _all_zero(t):
        code, rank = KindReason.ZERO_GRADIENT_IN_REFERENCE, EvidenceRank.CONSISTENT
    else:
        return None
    facts = evidence.parameter
    parameter = facts.fqn if facts is not None and evidence.origin.phase == "param_grad" else None
    found = Found(rank=rank, sentence=said(evidence, code, parameter=parameter))
    if code in _IN_REFERENCE:  # the usual causes are the target's
        return replace(found, causes=(CauseCode.CUT_IN_REFERENCE,), without=_CAUSES)
    is_trained = facts is not None and facts.target_trainable is True
    return replace(found, without=(CauseCode.NOT_TRAINABLE,)) if is_trained else found


_CAUSES = (CauseCode.NOT_TRAINABLE, CauseCode.GRAPH_CUT, CauseCode.RESULT_UNUSED)
_IN_REFERENCE = (KindReason.NO_GRADIENT_IN_REFERENCE, KindReason.ZERO_GRADIENT_IN_REFERENCE)


def _all_zero(known: Known) -> bool:
    """Every element is zero; an empty tensor has none."""
    zeros = known.statistic("num_zero")
    return known.numel > 0 and (zeros == known.numel or known.statistic("l2_norm") == 0)


RULE = KindRule(
    code=KindCode.FROZEN_OR_MISSING_GRADIENT,
    family=KindClass.MODEL,
    needs=Needs.NOTHING,
    looks=(_frozen, _missing),
    causes=_CAUSES,
    advice=AdviceCode.FOLLOW_THE_GRAPH,
    place="a gradient of zeros is a scale of zero and a missing term too; where it is cut says more",
)
