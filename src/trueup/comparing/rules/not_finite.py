"""NaN and infinities that one side has and the other has not."""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import DIFFERENT, EQUAL, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.not_counted import shown_apart
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.arrays import Bools
from trueup.types.codes import RecordCode
from trueup.types.reason import reason
from trueup.types.status import Status


def _not_finite(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    counts = _counts(context, metrics, context.comparable(metrics) & (judgement.status != EQUAL))
    reasons = {}
    for row, found in counts.items():
        known = judgement.reasons.get(row)
        if judgement.status[row] != DIFFERENT or "places" in found:
            known = None
        reasons[row] = reason(RecordCode.NOT_FINITE, *((known,) if known else ()), **found)
    at = np.array(list(counts), np.int64)
    return judgement.at(at, status=DIFFERENT, score=np.inf, why=reasons)


def _counts(context: StepContext, metrics: Metrics, open_: Bools) -> dict[int, dict[str, int | str]]:
    """Row -> how many places differ, and what each side holds more or less of, or is shown to hold."""
    counts: dict[int, dict[str, int | str]] = {}
    for row in np.flatnonzero(open_ & (metrics.mismatched > 0)).tolist():
        counts[row] = {"places": int(metrics.mismatched[row])}
    sides = context.rows.target.statistics, context.rows.reference.statistics
    for name in ("nan", "posinf", "neginf"):
        target, reference = (side[f"num_{name}"] for side in sides)
        for row in np.flatnonzero(open_ & (target != reference) & ~np.isnan(target + reference)).tolist():
            found = counts.setdefault(row, {})
            found |= {f"target_{name}": int(target[row]), f"reference_{name}": int(reference[row])}
    for what, shown in shown_apart(context.rows).items():
        for side, here in zip(("target", "reference"), shown, strict=True):
            for row in np.flatnonzero(open_ & here).tolist():
                if row not in counts:
                    counts[row] = {"what": what, "side": side}
    return counts


RULE = Rule(
    apply=_not_finite,
    codes=(RecordCode.NOT_FINITE,),
    statuses=(Status.DIFFERENT,),
    place="after all that judge sizes, which leave NaN out; it keeps what they gave as its part",
    note="0068-not-finite-without-counts",
)
