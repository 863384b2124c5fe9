"""Running averages of an optimizer in two implementations: ``1 - beta`` is rounded in one, not in the other.

An average takes in ``(1 - beta)`` of what is new. Where one framework holds beta in the state's dtype (0.999
in float32 leaves 0.00099998712) and the other in double precision, the new share differs by up to ``u / (1 -
beta)`` of itself, u the dtype's unit roundoff, in every element alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trueup.comparing.rows import Rows
from trueup.comparing.tolerance import Bound
from trueup.numerics.dtypes import unit_roundoffs
from trueup.store import TraceSource

AVERAGES = ("state.exp_avg", "state.exp_avg_sq")
"""slots of the averages, in the order of ``betas``"""


def with_rounded_coefficients(
    bound: Bound, rows: Rows, traces: tuple[TraceSource, TraceSource], rank: int
) -> Bound:
    """The bound, wider by ``u / (1 - beta)`` of the scale at running averages."""
    relative = bound.relative.copy()
    roundoff = unit_roundoffs(rows.match.words.dtype)[rows.reference.dtype]
    for slot, beta in zip(AVERAGES, _betas(traces, rank), strict=False):
        chosen = rows.phase_is("optimizer") & rows.slot_is(slot)
        relative[chosen] += np.nan_to_num(roundoff[chosen]) / (1.0 - beta)
    return replace(bound, relative=relative, absolute=relative * bound.scale)


def _betas(traces: tuple[TraceSource, TraceSource], rank: int) -> list[float]:
    """The largest of each beta that any optimizer of the two runs has; below 1."""
    found = [betas for trace in traces for betas in _told(trace, rank)]
    return [max(column) for column in zip(*found, strict=False)]


def _told(trace: TraceSource, rank: int) -> Iterator[list[float]]:
    for optimizer in trace.rank_facts(rank).get("optimizers", []):
        for group in optimizer.get("groups", []):
            betas = group.get("betas")
            if isinstance(betas, list) and all(isinstance(b, (int, float)) and 0 <= b < 1 for b in betas):
                yield [float(beta) for beta in betas]
