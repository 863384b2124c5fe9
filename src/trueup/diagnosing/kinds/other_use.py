"""A weight's gradient has a part that the calls of its module do not make: a head that multiplies with the
embedding's weight, a loss that reads a weight, a hook on the gradient."""

from __future__ import annotations

from trueup.diagnosing.evidence import Evidence
from trueup.diagnosing.evidence.vectors import length
from trueup.diagnosing.kinds.fitting import fit
from trueup.diagnosing.kinds.rule import Found, origin_reason
from trueup.diagnosing.kinds.thresholds import CHANGE_LEAVES, CLOSE_ROUNDINGS
from trueup.types.codes.kinds import CauseCode, KindReason
from trueup.types.finding import EvidenceRank


def other_use(evidence: Evidence) -> Found | None:
    """Where that part makes the difference: on one side alone, or another one on either.

    With o what the calls make of the gradient on a side, the part is t - o(t) and r - o(r); it makes the
    difference where o(t) - o(r) is little of t - r. A multiple of the reference's gradient has no such part:
    all of it was scaled.
    """
    own, values = evidence.own_gradients, evidence.whole_values
    if own is None or values is None or values[0].shape != own.target.shape:
        return None
    target, reference = values
    size = max(length(one.ravel()) for one in (target, reference, own.target, own.reference))
    allowed = CLOSE_ROUNDINGS * max(evidence.roundoff, evidence.origin.tolerance or 0.0) * size
    parts = length((target - own.target).ravel()), length((reference - own.reference).ravel())
    apart = length((target - reference).ravel())
    beside = length((own.target - own.reference).ravel())
    if max(parts) <= allowed or beside > CHANGE_LEAVES * apart or apart <= allowed:
        return None
    multiple = fit(target.ravel(), reference.ravel())
    if multiple is not None and multiple.residual <= allowed:
        return None
    there = [part > allowed for part in parts]
    facts = {"module": evidence.surroundings.module}
    if all(there):
        shares = {"target": parts[0] / size, "reference": parts[1] / size}
        sentence = origin_reason(evidence, KindReason.OTHER_USES_DIFFER, **facts, **shares)
    else:
        side = "target" if there[0] else "reference"
        share = parts[0 if there[0] else 1] / size
        sentence = origin_reason(evidence, KindReason.OTHER_USE, side=side, share=share, **facts)
    return Found(rank=EvidenceRank.EVERY_ELEMENT, sentence=sentence, causes=(CauseCode.OTHER_USE,))
