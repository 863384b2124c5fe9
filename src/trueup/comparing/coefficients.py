"""Running averages of an optimizer in two implementations: ``1 - beta`` is rounded in one, not in the other.

An average takes in ``(1 - beta)`` of what is new. Where one implementation holds beta in the state's dtype
(0.999 in float32 leaves 0.00099998712, as in fused kernels of a GPU) and the other in double precision, the
new share differs by up to ``u / (1 - beta)`` of itself, u the dtype's unit roundoff, in every element alike.
An update is made of the first average over the root of the second: it differs by the first share and half
the second, of its own length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trueup.comparing.metrics import Metrics
from trueup.comparing.rows import StepRows
from trueup.comparing.tolerance import Bound
from trueup.numerics.dtypes import unit_roundoffs
from trueup.store import TraceSource

AVERAGES = ("state.exp_avg", "state.exp_avg_sq")
"""slots of the averages, in the order of ``betas``"""


_KERNELS = ("fused", "foreach", "capturable")
"""settings that choose how an optimizer computes"""


def with_rounded_coefficients(
    bound: Bound, rows: StepRows, metrics: Metrics, traces: tuple[TraceSource, TraceSource], rank: int
) -> Bound:
    """The bound, wider by ``u / (1 - beta)`` of the scale at running averages, and by what of that reaches
    the weights, where the two runs compute their updates by two implementations."""
    if rows.match.bridge is None and len({_implementation(trace, rank) for trace in traces}) == 1:
        return bound
    relative, betas = bound.relative.copy(), _betas(traces, rank)
    roundoff = unit_roundoffs(rows.match.words.dtype)[rows.reference.dtype]
    for slot, beta in zip(AVERAGES, betas, strict=False):
        chosen = rows.phase_is("optimizer") & rows.slot_is(slot)
        relative[chosen] += np.nan_to_num(roundoff[chosen]) / (1.0 - beta)
    absolute = relative * bound.scale
    if len(betas) == len(AVERAGES):
        updated = np.flatnonzero(rows.phase_is("optimizer") & rows.slot_is("param") & rows.paired)
        share = 1.0 / (1.0 - betas[0]) + 0.5 / (1.0 - betas[1])
        lengths = np.nan_to_num(metrics.update_lengths[rows.weight[updated]])
        absolute[updated] += np.nan_to_num(roundoff[updated]) * share * lengths
    return replace(bound, relative=relative, absolute=absolute)


def _implementation(trace: TraceSource, rank: int) -> tuple[object, ...]:
    """What an update is computed by: classes, the settings that choose kernels, whether on the host."""
    facts = trace.rank_facts(rank)
    made = []
    for one in facts.get("optimizers", []):
        groups = one.get("groups", [])
        made.append((one.get("class"), *(bool(group.get(name)) for group in groups for name in _KERNELS)))
    return (*made, bool(facts.get("summarised_by")))


def _betas(traces: tuple[TraceSource, TraceSource], rank: int) -> list[float]:
    """The largest of each beta that any optimizer of the two runs has; below 1."""
    found = [betas for trace in traces for betas in _recorded_betas(trace, rank)]
    return [max(column) for column in zip(*found, strict=False)]


def _recorded_betas(trace: TraceSource, rank: int) -> Iterator[list[float]]:
    for optimizer in trace.rank_facts(rank).get("optimizers", []):
        for group in optimizer.get("groups", []):
            betas = group.get("betas")
            if isinstance(betas, list) and all(isinstance(b, (int, float)) and 0 <= b < 1 for b in betas):
                yield [float(beta) for beta in betas]
