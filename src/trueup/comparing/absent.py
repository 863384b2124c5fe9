"""A weight's own gradient that one run alone has: frozen, detached, or left out of the loss."""

from __future__ import annotations

import numpy as np

from trueup.comparing.judgement import UNMATCHED, Judgement
from trueup.comparing.rows import Bools, Rows
from trueup.types.codes import RecordCode
from trueup.types.reason import reason

LOCAL = "local"


def first_absent_gradient(rows: Rows, verdict: Judgement) -> int | None:
    """The first weight in backward's order that has a gradient on one side alone; its reason says so.

    None where more than half of the weights have: then the two were captured otherwise.
    """
    local = rows.phase_is("param_grad") & rows.slot_starts(LOCAL) & _known_on_both(rows)
    absent = local & (verdict.status == UNMATCHED)
    at = np.flatnonzero(absent)
    if not len(at) or 2 * len(at) > int(local.sum()):
        return None
    row = int(at[0])
    lacking = "reference" if rows.target.record[row] >= 0 else "target"
    verdict.reasons[row] = reason(RecordCode.GRADIENT_ABSENT, side=lacking)
    verdict.score[row] = np.inf
    return row


def _known_on_both(rows: Rows) -> Bools:
    """Rows whose call, here the weight, the other side has too."""
    calls = rows.match.calls
    out = np.zeros(len(rows), bool)
    for half, partner in ((rows.target, calls.reference_of), (rows.reference, calls.target_of)):
        here = half.call >= 0
        out[here] |= partner[half.call[here]] >= 0
    return out
