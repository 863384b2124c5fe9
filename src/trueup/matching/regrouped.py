"""Whether two runs hold the same weights in other pieces, though most of their names are the same."""

from __future__ import annotations

import numpy as np

from trueup.matching.step import StepMatch
from trueup.store import StepTables, TraceSource


def are_regrouped(
    match: StepMatch,
    traces: tuple[TraceSource, TraceSource],
    tables: tuple[StepTables, StepTables],
    ranks: tuple[int, int],
) -> bool:
    """Whether weights that names do not pair hold the same values on both sides in other pieces: queries,
    keys and values in one projection, experts in one stack, a matrix turned round."""
    left, right = _left_over(match)
    if not left or not right:
        return False
    from trueup.matching.weights import StepWeights  # two runs of one program do without
    from trueup.matching.weights.content import content_classes, pieces_by_sum

    target, reference = (
        StepWeights(trace, rank=rank, tables=of)
        for trace, rank, of in zip(traces, ranks, tables, strict=True)
    )
    here = [name for name in target.names() if name in left]
    there = [name for name in reference.names() if name in right]
    turned = any(
        target.facts(one).shape != reference.facts(other).shape
        for group in content_classes(target, reference, here, there)
        for one, other in zip(*group, strict=True)
    )
    return turned or any(pieces_by_sum(target, reference, here, there))


def _left_over(match: StepMatch) -> tuple[set[str], set[str]]:
    """Names of weights without a counterpart of the same name and shape."""
    kind = match.words.kind.index("parameter") if "parameter" in match.words.kind else -2
    sides = (match.target, match.calls.reference_of), (match.reference, match.calls.target_of)
    names = []
    for side, partner in sides:
        other = match.reference if side is match.target else match.target
        calls = np.flatnonzero(side.kind == kind)
        paired = calls[partner[calls] >= 0]
        same = paired[side.shapes[paired] == other.shapes[partner[paired]]]
        names.append({match.words.name[code] for code in side.plain[np.setdiff1d(calls, same)].tolist()})
    return names[0], names[1]
