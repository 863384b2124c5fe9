"""Frozen values every other package speaks in: no behaviour, no framework, no I/O."""

from trueup.types.finding import (
    Basis,
    EvidenceRank,
    Finding,
    Kind,
    KindClass,
    KindCode,
    Origin,
    Stage,
)
from trueup.types.reason import Reason, reason
from trueup.types.site import CallKind, Mode, Phase
from trueup.types.status import Evidence, Outcome, Status
from trueup.types.verdict import Verdict

__all__ = [
    "Basis",
    "CallKind",
    "Evidence",
    "EvidenceRank",
    "Finding",
    "Kind",
    "KindClass",
    "KindCode",
    "Mode",
    "Origin",
    "Outcome",
    "Phase",
    "Reason",
    "Stage",
    "Status",
    "Verdict",
    "reason",
]
