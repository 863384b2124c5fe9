"""What happens inside of calls that a trace sees from outside only, such as a compiled model's: as the other
trace shows it, or else as far as weights and results tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueup.comparing.rows import Half, StepRows
from trueup.matching.codes import Codes
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.arrays import Bools, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """For each row that is made inside of such a call; 0 for all others."""

    leaves: Floats
    """module calls in it that hold no other; where neither trace shows them, modules with weights"""
    roundoff: Floats
    """the coarsest it computes with"""


def unseen(rows: StepRows) -> Unseen | None:
    """None where every call is seen from inside."""
    pairs = rows.match.calls
    leaves, roundoff = np.zeros(len(rows)), np.zeros(len(rows))
    made = (rows.phase_is("forward") & rows.slot_starts("output")) | rows.phase_is("backward")
    found = False
    for half, other, partner in (
        (rows.target, rows.reference, pairs.reference_of),
        (rows.reference, rows.target, pairs.target_of),
    ):
        closed = opaque(half)[:-1] & (partner >= 0)
        if not closed.any():
            continue
        found = True
        inside, coarsest = _inside(rows, other, partner[closed])
        at = np.flatnonzero(made & (half.call >= 0) & np.append(closed, False)[half.call])
        there = partner[half.call[at]]
        leaves[at], roundoff[at] = inside[there], np.maximum(roundoff[at], coarsest[there])
    return Unseen(leaves=leaves, roundoff=roundoff) if found else None


def opaque(half: Half) -> Bools:
    """Calls nothing inside of which is seen, such as a compiled model's: gradients flow there unseen as well.
    One more entry, False, for no call."""
    calls = half.tables.calls
    if "opaque" not in calls.columns:
        return np.zeros(half.side.num_calls + 1, bool)
    return np.append(calls["opaque"].fill_null(False).to_numpy(), False)


def _inside(rows: StepRows, half: Half, chosen: Codes) -> tuple[Floats, Floats]:
    """Per call of one side: leaf module calls in a chosen one, and the coarsest roundoff of what it holds."""
    side = half.side
    owner = np.full(side.num_calls, -1)
    owner[chosen] = chosen
    while len(at := np.flatnonzero((owner < 0) & (side.parent >= 0) & (owner[side.parent] >= 0))):
        owner[at] = owner[side.parent[at]]
    modules = side.kind == rows.match.words.kind.index("module")
    leaf = modules.copy()
    leaf[side.parent[modules & (side.parent >= 0)]] = False
    leaves, coarsest = np.zeros(side.num_calls), np.zeros(side.num_calls)
    np.add.at(leaves, owner[leaf & (owner >= 0)], 1.0)
    here = np.flatnonzero((half.record >= 0) & (half.call >= 0))
    held = owner[half.call[here]]
    own = np.nan_to_num(unit_roundoffs(rows.match.words.dtype)[half.dtype[here]])
    np.maximum.at(coarsest, held[held >= 0], own[held >= 0])
    for call in chosen[opaque(half)[:-1][chosen]].tolist():
        leaves[call] = _modules_with_weights(rows, half, rows.match.words.name[side.plain[call]])
    return leaves, coarsest


def _modules_with_weights(rows: StepRows, half: Half, module: str) -> int:
    at = rows.phase_is("param") & (half.call >= 0)
    names = {rows.match.words.name[code] for code in np.unique(half.side.plain[half.call[at]]).tolist()}
    owners = {name.rpartition(".")[0] for name in names}
    return sum(not module or one == module or one.startswith(f"{module}.") for one in owners)
