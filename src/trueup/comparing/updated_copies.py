"""What the optimizers update where one has the weights, the other copies of them in a finer dtype.

Copies have no names of the model: they are told by their shapes, and only where the optimizer that has them
updates one for each weight that the other updates, all of these in one dtype, all of those in another.
Nothing that either updates has a counterpart, so no tensor shows that the trainings differ: weights in
bfloat16 lose updates of less than half a step of theirs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from trueup.comparing.rows import Half, StepRows
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.arrays import Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatedCopies:
    """One optimizer of two updates copies."""

    side: str
    """that keeps copies"""
    target: str
    """dtype of what is updated"""
    reference: str
    weights: tuple[str, ...]
    """that the other side updates"""


def updated_copies(rows: StepRows) -> UpdatedCopies | None:
    """Of one step; None where neither side keeps copies, both do, or it cannot be told."""
    updated = rows.phase_is("optimizer") & rows.slot_is("param")
    if not updated.any() or (updated & rows.paired).any():
        return None
    target, reference = (_held(rows, half, updated) for half in (rows.target, rows.reference))
    if target is None or reference is None or target.shapes != reference.shapes:
        return None
    model = rows.phase_is("param") & rows.paired
    names = rows.match.words.name
    weights = {names[code] for code in rows.of_call("name")[model].tolist()}
    of_model = [set(one.names) <= weights for one in (target, reference)]
    if of_model[0] == of_model[1]:
        return None
    side, copies, other = ("reference", reference, target) if of_model[0] else ("target", target, reference)
    if not copies.roundoff < other.roundoff or set(copies.names) & weights:
        return None
    return UpdatedCopies(side=side, target=target.dtype, reference=reference.dtype, weights=other.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What one side's optimizer updates, all in one dtype."""

    names: tuple[str, ...]
    shapes: Counter[tuple[int, ...]]
    dtype: str
    roundoff: float


def _held(rows: StepRows, half: Half, updated: Bools) -> _Held | None:
    at, words = np.flatnonzero(updated & (half.record >= 0)), rows.match.words
    dtypes = np.unique(half.dtype[at])
    if len(dtypes) != 1 or dtypes[0] < 0:
        return None
    return _Held(
        names=tuple(words.name[code] for code in rows.of_call("name")[at].tolist()),
        shapes=Counter(tuple(words.shape[code]) for code in half.shape[at].tolist()),
        dtype=words.dtype[dtypes[0]],
        roundoff=float(unit_roundoffs(words.dtype)[dtypes[0]]),
    )
