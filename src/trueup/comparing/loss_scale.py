"""Gradients of losses that were multiplied by other scales before backward, brought to one scale.

A loss scale keeps the gradients of half precision in range and is taken out before the update: another one is
no other training. With f the target's scale over the reference's and t = a r + rest, the two differ by

    ||t/f - r||^2 = (a/f - 1)^2 ||r||^2 + ||rest||^2 / f^2

since the rest of a least-squares fit is orthogonal to r.

A program may do the same by hand: divide each loss by the ranks and add up the gradients, where the other
divides the sum. That is told by its end: all losses of a step are one multiple of the reference's, and the
gradients that the optimizer gets are equal.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trueup.comparing.metrics import SKETCH, VALUES, Metrics
from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import Half, StepRows
from trueup.comparing.thresholds import UNDONE
from trueup.store import TraceSource
from trueup.types.arrays import Bools, Floats


def loss_scales(
    rows: StepRows, target: TraceSource, reference: TraceSource, pair: StepPair
) -> tuple[float, float]:
    """Target's and reference's loss scale in a step; 1 and 1 where they are not known.

    Where one run alone has a scaler, the other's scale is 1, unless its gradients say that it scales by hand.
    """
    scales = [
        next((line.get("loss_scale") for line in source.scalars(rank) if line.get("step") == step), None)
        for source, rank, step in _sides(target, reference, pair)
    ]
    one, other = (float(scale) if isinstance(scale, (int, float)) else 1.0 for scale in scales)
    if None in scales and not _fits(rows, one / other if one > 0 < other else np.nan):
        return 1.0, 1.0
    return (one, other) if one > 0 and other > 0 else (1.0, 1.0)


def _fits(rows: StepRows, ratio: float) -> bool:
    """Whether gradients are nearer to this ratio than to none: the middle one, by its logarithm."""
    middle = _middle_log(rows)
    return middle is not None and bool(abs(middle - np.log(ratio)) < abs(middle))


def _middle_log(rows: StepRows) -> float | None:
    """Logarithm of how many times as long as the reference's the middle gradient of backward is."""
    chosen = rows.paired & _scaled(rows)
    lengths = rows.target.statistics["l2_norm"][chosen], rows.reference.statistics["l2_norm"][chosen]
    with np.errstate(all="ignore"):
        logs = np.log(lengths[0] / lengths[1])
    logs = logs[np.isfinite(logs)]
    return float(np.median(logs)) if len(logs) else None


def _makes_gradients(rows: StepRows, allowed: Floats, factor: float) -> bool:
    """Whether backward's gradients are this multiple of the reference's: a loss that is only summed or
    rounded in another way has another value, and sends back what it sent."""
    middle, change = _middle_log(rows), abs(np.log(factor))
    noise = allowed[rows.paired & _scaled(rows)]
    if middle is None or not len(noise) or float(np.median(np.nan_to_num(noise))) >= change:
        return False
    return bool(abs(middle - np.log(factor)) <= UNDONE * change)


def undone_scale(
    rows: StepRows,
    metrics: Metrics,
    allowed: Floats,
    target: TraceSource,
    reference: TraceSource,
    pair: StepPair,
) -> float:
    """The target's losses over the reference's, where that is one factor and taken out again before the
    update; 1 where it is not, or clipping may hide it: gradients that are clipped to one norm are equal
    whatever the factor was, so that the norm before clipping has to agree, or a side must not change its
    gradients. In coarse dtypes a factor may be within the bounds of all single gradients; their length all
    together shows it.

    Args:
        rows: of one step and rank.
        metrics: of the rows.
        allowed: per row what rounding explains, relative to the norm.
        target: trace of the target.
        reference: trace of the reference.
        pair: the step.
    """
    losses = rows.paired & rows.phase_is("loss") & rows.slot_is("value")
    given = rows.phase_is("param_grad") & rows.slot_is("clipped")
    factors = _quotient(rows.target.statistics["mean"][losses], rows.reference.statistics["mean"][losses])
    if not len(factors) or not given.any() or not np.isfinite(factors).all() or factors[0] <= 0:
        return 1.0
    rounding = 2 * float(np.max(allowed[losses]))
    is_one = np.abs(factors / factors[0] - 1) <= rounding
    is_factor = is_one.all() and abs(factors[0] - 1) > rounding  # a bound that is not known tells nothing
    if not is_factor or not _makes_gradients(rows, allowed, float(factors[0])):
        return 1.0
    agree = rows.paired & (metrics.rel_l2 <= np.nan_to_num(allowed))
    lengths = [
        float(np.linalg.norm(side.statistics["l2_norm"][given])) for side in (rows.target, rows.reference)
    ]
    if not agree[given].all() or not is_taken_out(float(factors[0]), lengths[0], lengths[1]):
        return 1.0
    norms = [_norm(one, rank, step) for one, rank, step in _sides(target, reference, pair)]
    if norms[0] is not None and norms[1] is not None:
        is_hidden = not is_taken_out(float(factors[0]), norms[0], norms[1])
    else:
        is_hidden = norms != [None, None] or all(map(_is_changed, (rows,) * 2, (rows.target, rows.reference)))
    return 1.0 if is_hidden else float(factors[0])


def is_taken_out(factor: float, target: float, reference: float) -> bool:
    """Whether the length of all gradients that the optimizer gets is the reference's rather than ``factor``
    times it."""
    return abs(target - reference) <= UNDONE * abs(factor - 1) * reference


def _sides(
    target: TraceSource, reference: TraceSource, pair: StepPair
) -> tuple[tuple[TraceSource, int, int], ...]:
    return (target, pair.rank, pair.step), (reference, pair.reference_rank, pair.reference_step)


def _norm(source: TraceSource, rank: int, step: int) -> float | None:
    """What clipping said was the norm of the gradients."""
    found = next((line.get("grad_norm") for line in source.scalars(rank) if line.get("step") == step), None)
    return float(found) if isinstance(found, (int, float)) else None


def _is_changed(rows: StepRows, side: Half) -> bool:
    """Whether some gradient that the optimizer gets has another length than backward left it with."""
    length = side.statistics["l2_norm"]
    of_grad = rows.phase_is("param_grad") & (side.call >= 0)
    left = dict(
        zip(*(column[of_grad & rows.slot_is("accumulated")] for column in (side.call, length)), strict=True)
    )
    given = zip(*(column[of_grad & rows.slot_is("clipped")] for column in (side.call, length)), strict=True)
    return any(left.get(call) != norm for call, norm in given)


def _quotient(numerator: Floats, denominator: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return np.asarray(numerator / denominator)


def with_factor_of(rows: StepRows, ratio: float) -> Bools:
    """What the loss is, what backward makes of it and what is done to that: as far as it is nearer to this
    ratio than to none."""
    of_loss = rows.phase_is("loss") & rows.slot_is("value")
    lengths = _quotient(rows.target.statistics["l2_norm"], rows.reference.statistics["l2_norm"])
    with np.errstate(all="ignore"):
        logs = np.log(lengths)
    nearer = np.abs(logs - np.log(ratio)) < np.abs(logs)
    return np.asarray(nearer & (_scaled(rows) | rows.phase_is("collective") | of_loss))


def made_of_scale(rows: StepRows, ratio: float) -> Bools:
    """Tensors of functions outside of all modules that are this multiple of the reference's: the scale, the
    loss times it, the gradients that an unscaling is given. Inside of modules nothing of a forward is."""
    outside = rows.paired & rows.kind_is("api") & (rows.of_call("parent") < 0) & rows.phase_is("forward")
    lengths = _quotient(rows.target.statistics["l2_norm"], rows.reference.statistics["l2_norm"])
    with np.errstate(all="ignore"):
        near = np.abs(np.log(lengths) - np.log(ratio)) <= UNDONE * abs(np.log(ratio))
    return np.asarray(outside & near)


def in_one_scale(rows: StepRows, metrics: Metrics, ratio: float, of: Bools | None = None) -> Metrics:
    """The metrics with the ratio of the scales taken out of all that backward made and nothing unscaled, or
    ``of`` these rows."""
    scaled = rows.paired & (_scaled(rows) if of is None else of) & ~metrics.bits_equal
    fitted = scaled & np.isin(metrics.evidence, (VALUES, SKETCH)) & np.isfinite(metrics.details["scale"])
    lengths = rows.target.statistics["l2_norm"], rows.reference.statistics["l2_norm"]
    rest = np.nan_to_num(metrics.details["residual"]) * lengths[0] / ratio
    factor = metrics.details["scale"] / ratio
    from_fit = np.hypot((factor - 1.0) * metrics.norm, rest)
    from_norms = np.abs(lengths[0] / ratio - lengths[1])
    difference = np.where(fitted, from_fit, np.where(scaled, from_norms, metrics.difference))
    scale = np.where(fitted, factor, metrics.details["scale"])
    return replace(metrics, difference=difference, details={**metrics.details, "scale": scale})


def _scaled(rows: StepRows) -> Bools:
    gradients = rows.phase_is("param_grad") & ~rows.slot_is("clipped")
    return np.asarray(rows.phase_is("backward") | gradients)
