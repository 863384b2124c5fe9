"""What an optimizer did to one parameter, solved for from what it left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trueup.diagnosing.evidence import Evidence, Known, ParameterStep, SlotPair
from trueup.diagnosing.evidence.facts import Arguments
from trueup.diagnosing.kinds.thresholds import SOLVED_RESIDUAL
from trueup.diagnosing.optimizer_fit import UpdateFit, adam_directions, fit_update
from trueup.types.arrays import Floats

Side = Literal["target", "reference"]
ADAM = {"eps": 1e-8, "beta1": 0.9, "beta2": 0.999}
"""what PyTorch's Adam takes where nothing is set"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideUpdate:
    """The fit of one side's update."""

    fit: UpdateFit
    corrected: bool | None
    """whether the direction that fits has its bias corrected; None where the optimizer has no moments"""
    left: float
    """norm of what the fit leaves open"""


def solve(evidence: Evidence, side: Side) -> SideUpdate | None:
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
    if not np.isfinite(step).all():
        return None
    best: SideUpdate | None = None
    for corrected, direction in _directions(evidence, facts, side).items():
        if direction.size != step.size or not np.isfinite(direction).all():
            continue
        fit = fit_update(step, direction.ravel(), before.ravel())
        if fit is not None and (best is None or fit.residual < best.fit.residual):
            left = fit.residual * float(np.linalg.norm(step))
            best = SideUpdate(fit=fit, corrected=corrected, left=left)
    return None if best is None or best.fit.residual > SOLVED_RESIDUAL else best


def _directions(evidence: Evidence, facts: ParameterStep, side: Side) -> dict[bool | None, Floats]:
    settings = settings_of(facts, side)
    m = _values(evidence, facts.after("state.exp_avg"), side)
    v = _values(evidence, facts.after("state.exp_avg_sq"), side)
    if m is not None and v is not None and m.shape == v.shape and (v >= 0).all():
        eps = _number(settings, "eps", ADAM["eps"])
        pairs = adam_directions(m, v, count=_count(facts, side), betas=_betas(settings))
        with np.errstate(divide="ignore", invalid="ignore"):
            return {corrected: top / (bottom + eps) for corrected, (top, bottom) in pairs.items()}
    buffer = _values(evidence, facts.after("state.momentum_buffer"), side)
    if buffer is not None:
        return {None: buffer}
    gradient = _values(evidence, facts.gradient(), side)
    return {} if gradient is None or facts.after("state.step") is not None else {None: gradient}


def settings_of(facts: ParameterStep, side: Side) -> Arguments:
    """Settings of the parameter's group on a side."""
    return facts.target_settings if side == "target" else facts.reference_settings


def _number(settings: Arguments, name: str, default: float) -> float:
    value = settings.get(name)
    return float(value) if isinstance(value, (int, float)) else default


def _betas(settings: Arguments) -> tuple[float, float]:
    betas = settings.get("betas")
    known = [b for b in betas if isinstance(b, (int, float))] if isinstance(betas, (list, tuple)) else []
    return (float(known[0]), float(known[1])) if len(known) == 2 else (ADAM["beta1"], ADAM["beta2"])


def _count(facts: ParameterStep, side: Side) -> float:
    """How many updates the state has seen."""
    pair = facts.after("state.step")
    known = None if pair is None else of_side(pair, side)
    return (
        max(known.statistic("maximum"), 1.0) if known is not None and known.statistic("maximum") > 0 else 1.0
    )


def of_side(pair: SlotPair, side: Side) -> Known | None:
    """One side of a pair."""
    return pair.target if side == "target" else pair.reference


def _values(evidence: Evidence, pair: SlotPair | None, side: Side) -> Floats | None:
    return None if pair is None else evidence.values_of(of_side(pair, side))
