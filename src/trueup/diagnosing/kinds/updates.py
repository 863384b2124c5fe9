"""What an optimizer did to one parameter, solved for from what it left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trueup.diagnosing.evidence import Evidence, Known, Pair, ParameterFacts
from trueup.diagnosing.evidence.facts import Floats
from trueup.diagnosing.evidence.vectors import length

Side = Literal["target", "reference"]

MAX_LEFT = 0.05
"""share of an update that a fit may leave open"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """``after - before = -rate * direction - decay * before``."""

    rate: float
    decay: float
    rate_error: float
    decay_error: float
    corrected: bool | None
    """whether the direction that fits has its bias corrected; None where the optimizer has no moments"""


def solve(evidence: Evidence, side: Side) -> Solved | None:
    """Learning rate and decoupled decay of one side's update; None where it cannot be told.

    Adam's direction is m' / (sqrt(v') + eps), with and without bias correction; without moments it is the
    momentum buffer or the gradient.
    """
    facts = evidence.parameter
    if facts is None:
        return None
    before, after = _values(evidence, facts.before, side), _values(evidence, facts.after("param"), side)
    if before is None or after is None or before.shape != after.shape:
        return None
    step = (after - before).ravel()
    if not np.isfinite(step).all() or not length(step) > 0:
        return None
    best: tuple[float, Solved] | None = None
    for corrected, direction in _directions(evidence, facts, side).items():
        found = _least_squares(
            step, direction.ravel(), before.ravel(), None if corrected == "plain" else corrected == "yes"
        )
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return None if best is None or best[0] > MAX_LEFT else best[1]


def _directions(evidence: Evidence, facts: ParameterFacts, side: Side) -> dict[str, Floats]:
    settings = settings_of(facts, side)
    m = _values(evidence, facts.after("state.exp_avg"), side)
    v = _values(evidence, facts.after("state.exp_avg_sq"), side)
    if m is not None and v is not None and m.shape == v.shape and (v >= 0).all():
        eps = float(settings.get("eps", 1e-8))
        b1, b2 = settings.get("betas", (0.9, 0.999))
        count = _count(facts, side)
        first, second = 1 - float(b1) ** count, 1 - float(b2) ** count
        return {
            "yes": m / first / (np.sqrt(v / second) + eps),
            "no": m / (np.sqrt(v) + eps),
        }
    buffer = _values(evidence, facts.after("state.momentum_buffer"), side)
    if buffer is not None:
        return {"plain": buffer}
    gradient = _values(evidence, facts.gradient(), side)
    return {} if gradient is None or facts.after("state.step") is not None else {"plain": gradient}


def _least_squares(
    step: Floats, direction: Floats, before: Floats, corrected: bool | None
) -> tuple[float, Solved] | None:
    if len(direction) != len(step) or not np.isfinite(direction).all() or not length(direction) > 0:
        return None
    columns = [-direction] + ([-before] if length(before) > 0 else [])
    matrix = np.stack(columns, axis=1)
    normal = matrix.T @ matrix
    if np.linalg.cond(normal / np.outer(*(np.sqrt(np.diag(normal)),) * 2)) > 1e8:
        matrix, normal = matrix[:, :1], normal[:1, :1]
    inverse = np.linalg.inv(normal)
    solution = inverse @ (matrix.T @ step)
    left = length(step - matrix @ solution)
    errors = left / np.sqrt(max(len(step) - 2, 1)) * np.sqrt(np.diag(inverse))
    padded = [*solution.tolist(), 0.0][:2]
    wrong = [*errors.tolist(), 0.0][:2]
    return left / length(step), Solved(
        rate=padded[0], decay=padded[1], rate_error=wrong[0], decay_error=wrong[1], corrected=corrected
    )


def settings_of(facts: ParameterFacts, side: Side) -> Mapping[str, Any]:
    """Settings of the parameter's group on a side."""
    return facts.target_settings if side == "target" else facts.reference_settings


def _count(facts: ParameterFacts, side: Side) -> float:
    """How many updates the state has seen."""
    pair = facts.after("state.step")
    known = None if pair is None else of_side(pair, side)
    return (
        max(known.statistic("maximum"), 1.0) if known is not None and known.statistic("maximum") > 0 else 1.0
    )


def of_side(pair: Pair, side: Side) -> Known | None:
    """One side of a pair."""
    return pair.target if side == "target" else pair.reference


def _values(evidence: Evidence, pair: Pair | None, side: Side) -> Floats | None:
    return None if pair is None else evidence.values_of(of_side(pair, side))
