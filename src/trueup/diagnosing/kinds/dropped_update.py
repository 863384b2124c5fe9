"""The parameter is after the update what it was before."""

from __future__ import annotations

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.kinds.rule import EvidenceNeeds, Found, KindRule, origin_reason
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode


def _not_updated(evidence: Evidence) -> Found | None:
    """The target's parameter keeps every bit through an update that moves the reference's."""
    facts, phase = evidence.parameter, evidence.origin.phase
    if facts is None or phase not in ("optimizer", "param"):
        return None
    if phase == "optimizer":
        after = facts.after("param")
        if after is None or after.target is None:
            return (
                None
                if after is None or after.reference is None
                else _found(evidence, KindReason.NEVER_UPDATED)
            )
        pairs = [(facts.before.target, after.target), (facts.before.reference, after.reference)]
    else:
        earlier = (evidence.elsewhere.target_earlier, evidence.elsewhere.reference_earlier)
        pairs = [
            (past[0][1] if past else None, now)
            for past, now in zip(earlier, (evidence.target, evidence.reference), strict=True)
        ]
    moved = [_moved(before, after) for before, after in pairs]
    return _found(evidence, KindReason.NOT_UPDATED) if moved == [False, True] else None


def _moved(before: Known | None, after: Known | None) -> bool | None:
    if before is None or after is None:
        return None
    same = before.same_bits(after)
    return None if same is None else not same


def _found(evidence: Evidence, code: KindReason) -> Found:
    facts = evidence.parameter
    assert facts is not None
    gradient = facts.gradient()
    norm = None if gradient is None or gradient.target is None else gradient.target.statistic("l2_norm")
    causes = []
    if evidence.target_run.skipped and not evidence.reference_run.skipped:
        causes = [CauseCode.STEP_SKIPPED]
    elif facts.target_grouped is False:
        causes = [CauseCode.NOT_IN_A_GROUP]
    sentence = origin_reason(
        evidence,
        code,
        parameter=facts.fqn,
        has_gradient=norm is not None and norm > 0,
        why=causes[0].value if causes else None,
    )
    without = [CauseCode.IN_NO_GROUP] if facts.target_grouped else []
    without += [] if evidence.target_run.skipped is None else [CauseCode.NO_STEP]
    return Found(
        rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=tuple(causes), without=tuple(without)
    )


RULE = KindRule(
    code=KindCode.DROPPED_UPDATE,
    family=KindClass.MODEL,
    needs=EvidenceNeeds.PARAMETER,
    looks=(_not_updated,),
    causes=(CauseCode.OTHER_TENSORS, CauseCode.IN_NO_GROUP, CauseCode.NO_STEP),
    advice=AdviceCode.CHECK_GROUPS,
    place="a parameter that did not move had a learning rate of zero too, and is a stale value",
)
