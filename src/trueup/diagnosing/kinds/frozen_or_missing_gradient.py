"""A gradient that the reference has does not arrive in the target, or is zero there."""

from __future__ import annotations

from dataclasses import replace

from trueup.diagnosing.evidence import Evidence, Known
from trueup.diagnosing.kinds.fitting import close, roundoff_of
from trueup.diagnosing.kinds.rule import EvidenceNeeds, Found, KindRule, origin_reason
from trueup.diagnosing.kinds.thresholds import CLOSE_ROUNDINGS
from trueup.numerics.dtypes import DTYPES
from trueup.numerics.summary import NOT_FINITE
from trueup.types.codes.kinds import AdviceCode, CauseCode, KindReason
from trueup.types.finding import EvidenceRank, KindClass, KindCode, Stage


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
    sentence = origin_reason(evidence, code, parameter=facts.fqn)
    return Found(rank=rank, sentence=sentence, causes=(CauseCode.NOT_TRAINABLE,))


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
    found = Found(rank=rank, sentence=origin_reason(evidence, code, parameter=parameter))
    if code in _IN_REFERENCE:  # the usual causes are the target's
        return replace(found, causes=(CauseCode.CUT_IN_REFERENCE,))
    is_trained = facts is not None and facts.target_trainable is True
    return replace(found, without=(CauseCode.NOT_TRAINABLE,)) if is_trained else found


def _part_of_the_loss(evidence: Evidence) -> Found | None:
    """A loss of one value that sends nothing to a part of what it is made of, and to the rest what the other
    run's does: a mask would have changed its value, a detach does not."""
    t, r = evidence.target_values, evidence.reference_values
    is_sent = evidence.origin.stage is Stage.LOSS and evidence.origin.phase == "backward"
    if not is_sent or t is None or r is None or t.shape != r.shape or not _same_loss(evidence):
        return None
    cut, given = (t == 0) & (r != 0), (r == 0) & (t != 0)
    rest = ~(cut | given)
    if (
        cut.any() == given.any()
        or not t[rest].any()
        or not close(t[rest], r[rest], roundoff_of(evidence)).all()
    ):
        return None
    side, where = ("target", cut) if cut.any() else ("reference", given)
    sentence = origin_reason(
        evidence,
        KindReason.PART_DETACHED,
        side=side,
        num=int(where.sum()),
        size=int((t != 0).sum() + cut.sum()),
    )
    found = Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence)
    return replace(found, causes=(CauseCode.GRAPH_CUT if side == "target" else CauseCode.CUT_IN_REFERENCE,))


def _same_loss(evidence: Evidence) -> bool:
    """Whether the loss that sends it has one value in both runs, to the roundings of a sum."""
    runs = (evidence.target_run, evidence.reference_run)
    at = evidence.surroundings.microbatch
    known = [run.losses[at].value if at in run.losses else run.loss for run in runs]
    if None in known:
        return False
    a, b = (float(one) for one in known if one is not None)
    return abs(a - b) <= CLOSE_ROUNDINGS * DTYPES["float32"].eps * abs(b)


_CAUSES = (CauseCode.NOT_TRAINABLE, CauseCode.GRAPH_CUT, CauseCode.RESULT_UNUSED)
_IN_REFERENCE = (KindReason.NO_GRADIENT_IN_REFERENCE, KindReason.ZERO_GRADIENT_IN_REFERENCE)


def _all_zero(known: Known) -> bool:
    """Every element is zero; an empty tensor has none. A norm is that of the finite ones."""
    zeros = known.statistic("num_zero")
    finite = not any(known.statistics.get(name) for name in NOT_FINITE)
    return known.numel > 0 and (zeros == known.numel or (finite and known.statistic("l2_norm") == 0))


RULE = KindRule(
    code=KindCode.FROZEN_OR_MISSING_GRADIENT,
    family=KindClass.MODEL,
    needs=EvidenceNeeds.NOTHING,
    looks=(_frozen, _missing, _part_of_the_loss),
    causes=_CAUSES,
    advice=AdviceCode.FOLLOW_THE_GRAPH,
    place="a gradient of zeros is a scale of zero and a missing term too; where it is cut says more",
)
