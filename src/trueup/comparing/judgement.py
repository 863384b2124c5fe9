"""A status and, where there is something to say, a reason for every row."""

from __future__ import annotations

from dataclasses import dataclass

from trueup.comparing.rows import Bools, Floats
from trueup.matching.codes import Codes
from trueup.types.reason import Reason
from trueup.types.status import Status

EQUAL, WITHIN, DIFFERENT, PROPAGATED, AMPLIFIED, ORIGIN, UNMATCHED, UNDECIDED = (
    status.code for status in Status
)


@dataclass(slots=True)
class Judgement:
    """Columns beside Rows."""

    status: Codes
    reasons: dict[int, Reason]
    tolerance: Floats
    """bound on rel_l2"""
    score: Floats
    bracketable: Bools
    """left without a verdict, but harmless where its neighbours agree"""
