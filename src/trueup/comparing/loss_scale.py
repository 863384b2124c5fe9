"""Gradients of losses that were multiplied by other scales before backward, brought to one scale.

A loss scale keeps the gradients of half precision in range and is taken out before the update: another one is
no other training. With f the target's scale over the reference's and t = a r + rest, the two differ by

    ||t/f - r||^2 = (a/f - 1)^2 ||r||^2 + ||rest||^2 / f^2

since the rest of a least-squares fit is orthogonal to r.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.comparing.metrics import SKETCH, VALUES, Metrics
from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import Rows
from trueup.store import TraceSource
from trueup.types.arrays import Bools


def loss_scales(
    rows: Rows, target: TraceSource, reference: TraceSource, pair: StepPair
) -> tuple[float, float]:
    """Target's and reference's loss scale in a step; 1 and 1 where they are not known.

    Where one run alone has a scaler, the other's scale is 1, unless its gradients say that it scales by hand.
    """
    sides = ((target, pair.rank, pair.step), (reference, pair.reference_rank, pair.reference_step))
    scales = [
        next((line.get("loss_scale") for line in source.scalars(rank) if line.get("step") == step), None)
        for source, rank, step in sides
    ]
    one, other = (float(scale) if isinstance(scale, (int, float)) else 1.0 for scale in scales)
    if None in scales and not _fits(rows, one / other if one > 0 < other else np.nan):
        return 1.0, 1.0
    return (one, other) if one > 0 and other > 0 else (1.0, 1.0)


def _fits(rows: Rows, ratio: float) -> bool:
    """Whether gradients are nearer to this ratio than to none: the middle one, by its logarithm."""
    chosen = rows.paired & _scaled(rows)
    lengths = rows.target.statistics["l2_norm"][chosen], rows.reference.statistics["l2_norm"][chosen]
    with np.errstate(all="ignore"):
        logs = np.log(lengths[0] / lengths[1])
    logs = logs[np.isfinite(logs)]
    return bool(len(logs) and abs(np.median(logs) - np.log(ratio)) < abs(np.median(logs)))


def in_one_scale(rows: Rows, metrics: Metrics, ratio: float) -> Metrics:
    """The metrics with the ratio of the scales taken out of all that backward made and nothing unscaled."""
    scaled = rows.paired & _scaled(rows) & ~metrics.bits_equal
    fitted = scaled & np.isin(metrics.evidence, (VALUES, SKETCH)) & np.isfinite(metrics.details["scale"])
    lengths = rows.target.statistics["l2_norm"], rows.reference.statistics["l2_norm"]
    rest = np.nan_to_num(metrics.details["residual"]) * lengths[0] / ratio
    factor = metrics.details["scale"] / ratio
    from_fit = np.hypot((factor - 1.0) * metrics.norm, rest)
    from_norms = np.abs(lengths[0] / ratio - lengths[1])
    difference = np.where(fitted, from_fit, np.where(scaled, from_norms, metrics.difference))
    scale = np.where(fitted, factor, metrics.details["scale"])
    return replace(metrics, difference=difference, details={**metrics.details, "scale": scale})


def _scaled(rows: Rows) -> Bools:
    gradients = rows.phase_is("param_grad") & ~rows.slot_is("clipped")
    return np.asarray(rows.phase_is("backward") | gradients)
