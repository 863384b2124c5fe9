"""A difference of the loss starts at the loss, not at the collective that carries a copy of it for the log.

Programs average the loss over processes before backward shows the loss itself. What a collective is given it
does not make: where that is a single number, and the next loss differs by the same factor, within what either
may differ by, both are the same number up to a constant, and the loss is what is trained on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.comparing.computed_in import leads_to_loss
from trueup.comparing.judgement import DIFFERENT, ORIGIN, PROPAGATED, Judgement
from trueup.comparing.metrics import Metrics
from trueup.comparing.rules.rule import Rule, StepContext
from trueup.types.status import Status


def _of_the_loss(context: StepContext, metrics: Metrics, judgement: Judgement) -> Judgement:
    rows, known = context.rows, judgement.attribution
    carried = rows.phase_is("collective") & rows.slot_starts("input") & (rows.reference.numel == 1)
    carried &= (known.status == ORIGIN) & leads_to_loss(rows)
    losses = np.flatnonzero(rows.phase_is("loss") & rows.slot_is("value") & (judgement.status == DIFFERENT))
    if not carried.any() or not len(losses):
        return judgement
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = rows.target.statistics["mean"] / rows.reference.statistics["mean"]
    for row in np.flatnonzero(carried).tolist():
        after = losses[losses > row]
        if not len(after):
            continue
        loss = int(after[0])
        allowed = judgement.tolerance[row] + judgement.tolerance[loss]
        if not abs(factor[row] / factor[loss] - 1.0) <= allowed:
            continue
        columns = {name: getattr(known, name).copy() for name in ("error_in", "gain", "explained")}
        equal = known.inputs_equal.copy()
        for column in (*columns.values(), equal):
            column[loss] = column[row]
        known = replace(known, **columns, inputs_equal=equal)
        judgement = replace(judgement, attribution=known).attributed(
            rows.target.call == rows.target.call[row], PROPAGATED
        )
        judgement = judgement.attributed(np.array([loss]), ORIGIN)
        known = judgement.attribution
    return judgement


RULE = Rule(
    apply=_of_the_loss,
    statuses=(Status.ORIGIN, Status.PROPAGATED),
    place="after origin, which goes by the order of records; before followed, as all that take one back",
    note="0017-received-is-not-made",
)
