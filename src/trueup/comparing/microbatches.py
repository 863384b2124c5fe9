"""What to conclude of two runs that cut a step into other numbers of microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trueup.comparing.ledger import Ledger
from trueup.comparing.scalars import ScalarPair
from trueup.types.codes import EvidenceCode, VerdictCode
from trueup.types.reason import reason
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict


def led_by_microbatches(verdict: Verdict, ledger: Ledger, scalars: Sequence[ScalarPair]) -> Verdict | None:
    """The verdict, led by the number of microbatches where that differs and leaves most records uncompared;
    None where it stands.

    A microbatch of one size and one of another share no shape: what is compared nevertheless, and differs,
    names no fault. Weights that differ at the start do, so such a verdict stands.
    """
    numbers = _numbers_apart(ledger, scalars)
    total = sum(ledger.counts.values())
    if numbers is None or 2 * ledger.compared >= total or verdict.phase == "param":
        return None
    evidence = [
        reason(EvidenceCode.WITHOUT_COUNTERPART, records=total - ledger.compared, total=total),
        *verdict.evidence,
    ]
    if verdict.where:
        site = {"site": verdict.where, "phase": verdict.phase or ""}
        evidence.insert(1, reason(EvidenceCode.FIRST_OF_COMPARED, **site))
    return replace(
        verdict,
        outcome=Outcome.DIFFER if verdict.outcome is Outcome.DIFFER else Outcome.UNDECIDED,
        headline=reason(VerdictCode.MICROBATCHES_DIFFER, target=numbers[0], reference=numbers[1]),
        where=None,
        owner=None,
        rank=None,
        phase=None,
        confidence=None,
        evidence=tuple(evidence),
        before=None,
    )


def _numbers_apart(ledger: Ledger, scalars: Sequence[ScalarPair]) -> tuple[int, int] | None:
    """Microbatches of the first compared step in which the two runs have not as many."""
    for pair in scalars:
        if pair.name == "microbatches" and pair.beyond and pair.step in ledger.limits:
            values = pair.target, pair.reference
            target, reference = (int(value) for value in values if isinstance(value, (int, float)))
            return target, reference
    return None
