"""What one run sends over ranks in several steps and the other in one, as a sum: judged together.

Steps that end where a program takes gradients away may be microbatches of one update. A collective of one
run alone in an earlier of them, and another number than the other run's in a later one, are no difference
where the sums of both sides over these steps agree as the later record has to.
"""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, UNDECIDED, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.codes import RecordCode
from trueup.types.reason import Reason
from trueup.types.status import Status


def _judged(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    if context.summed_apart is None:
        return judgement
    with np.errstate(invalid="ignore"):
        same = context.summed_apart <= judgement.tolerance
    why = Reason(RecordCode.SUMMED_OVER_STEPS)
    found = same & (judgement.status == DIFFERENT)
    return judgement.at(found, status=UNDECIDED, score=np.nan, bracketable=True, why=why)


RULE = Rule(
    apply=_judged,
    codes=(RecordCode.SUMMED_OVER_STEPS,),
    statuses=(Status.UNDECIDED,),
    place="after all that decides whether a record differs; before where a difference starts",
    note="0087-updates-that-programs-write-themselves",
)
