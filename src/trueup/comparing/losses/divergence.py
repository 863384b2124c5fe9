"""Divergences of a model's probabilities from soft labels: what is left where large terms cancel.

A Kullback-Leibler divergence sums p log p - p log q. Where a student is near its teacher it is far smaller
than either term, of which float32 rounds each, and so is its gradient q - p: rounding in another kernel of
the teacher moves both by many times what their own size explains. How large the terms are can be worked out
again from the logits and the soft labels, where the divergence is reproduced from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from trueup.comparing.losses.calls import around_loss, loss_records
from trueup.comparing.pairing import StepPair
from trueup.comparing.rows import StepRows
from trueup.comparing.thresholds import CLASS_ROUNDINGS, FLOAT32, LOSS_ROUNDINGS
from trueup.comparing.tolerance import Bound
from trueup.numerics.dtypes import DTYPES
from trueup.store import StepView, TraceSource, step_view
from trueup.types.arrays import Floats

TARGETS = "targets"
"""slot of a loss's record of what it comes near to"""
_FEWEST_CLASSES = 3
"""of two, a smoothed label and one that is mixed with another are the same"""
_TEMPERATURES = (1.0, 0.5, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0)
_SHARES = (1.0, 0.5, 0.9, 0.8, 0.75, 0.7, 0.6, 0.4, 0.3, 0.25, 0.2, 0.1)
"""weights of the divergence in the loss"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """A loss that is a number times a divergence from soft labels, and how far its terms cancel."""

    cancels: float
    """size of the terms that the loss is summed up from, over its own"""
    gradient_cancels: float
    """the same of the gradient of the logits, which all gradients are made of"""


def class_rows(values: Floats, rounding: float) -> Floats | None:
    """Rows of probabilities (rows, classes); None where they are none."""
    rows = values.reshape(-1, values.shape[-1]) if values.ndim >= 2 else values[:0].reshape(0, 1)
    if not len(rows) or rows.shape[1] < _FEWEST_CLASSES or not np.isfinite(rows).all() or rows.min() < 0:
        return None
    error = CLASS_ROUNDINGS * rounding * rows.shape[1]
    return rows if np.abs(rows.sum(axis=1) - 1).max() <= error else None


def divergence_of(loss: float, logits: Floats, labels: Floats) -> Divergence | None:
    """How ``loss`` is made of logits and soft labels, both (rows, classes); None where it is no divergence.

    The mean over rows or elements, or the sum; at a temperature, whose square may multiply it; a share of it.
    Of several ways that fit, the one that cancels least.
    """
    found = list(_fits(loss, logits, labels))
    return min(found, key=lambda one: (one.cancels, one.gradient_cancels), default=None)


def _fits(loss: float, logits: Floats, labels: Floats) -> Iterator[Divergence]:
    """Every way that reproduces the loss; of a student near its teacher there are several temperatures."""
    own = labels > 0
    entropy = float(-(labels[own] * np.log(labels[own])).sum())
    for temperature in _TEMPERATURES:
        log_q = _log_softmax(logits / temperature)
        cross = float(-(labels * log_q).sum())
        terms = entropy + cross
        for times, mean, share in product(
            (1.0, temperature**2), (1 / len(labels), 1 / labels.size, 1.0), _SHARES
        ):
            scale = times * mean * share
            error = FLOAT32 * (LOSS_ROUNDINGS + np.sqrt(labels.size)) * scale * terms
            if abs(loss - scale * (cross - entropy)) <= error:
                yield Divergence(
                    cancels=_over(scale * terms, abs(loss)), gradient_cancels=_gradient(np.exp(log_q), labels)
                )


def _gradient(q: Floats, labels: Floats) -> float:
    terms = float(np.linalg.norm(q) + np.linalg.norm(labels))
    return _over(terms, float(np.linalg.norm(q - labels)))


def _over(terms: float, rest: float) -> float:
    """At least 1; of what cancels but for the rounding of its terms no more than that tells."""
    return terms / min(max(rest, FLOAT32 * terms), terms)


def _log_softmax(logits: Floats) -> Floats:
    moved = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(moved - np.log(np.exp(moved).sum(axis=1, keepdims=True)))


def with_divergences(
    bound: Bound, rows: StepRows, target: TraceSource, reference: TraceSource, pair: StepPair
) -> Bound:
    """The bound, by the size of its terms where the loss of either side is a divergence from soft labels: of
    the loss, and of all gradients. A program that writes it by hand may show no soft labels."""
    shown = rows.phase_is("loss") & rows.slot_starts(TARGETS)
    found: list[Divergence] = []
    for half, source, step, rank in (
        (rows.target, target, pair.step, pair.rank),
        (rows.reference, reference, pair.reference_step, pair.reference_rank),
    ):
        if (shown & (half.record >= 0)).any():
            found += _divergences(step_view(source, step, rank))
    if not found:
        return bound
    times = np.ones(len(rows))
    times[rows.phase_is("loss") & rows.slot_is("value")] = max(one.cancels for one in found)
    times[rows.phase_is("backward", "param_grad")] = max(one.gradient_cancels for one in found)
    return replace(bound, scale=bound.scale * times, absolute=bound.absolute * times)


def _divergences(view: StepView) -> Iterator[Divergence]:
    """Of each microbatch of a step whose loss is one."""
    targets = dict(loss_records(view, TARGETS))
    for microbatch, record in loss_records(view, "value"):
        value, labels = view.value(record), _labels(view, targets.get(microbatch))
        if value is None or value.size != 1 or labels is None:
            continue
        made = (
            divergence_of(float(value.ravel()[0]), one, labels)
            for one in _logits(view, microbatch, labels.shape)
        )
        yield from [one for one in made if one is not None][:1]


def _labels(view: StepView, record: int | None) -> Floats | None:
    """Soft labels (rows, classes) of a record, in float32."""
    value = None if record is None or view.dtype(record) != "float32" else view.value(record)
    return None if value is None else class_rows(value, FLOAT32)


def _logits(view: StepView, microbatch: int, shape: tuple[int, ...]) -> Iterator[Floats]:
    for _, slot, record in around_loss(view, microbatch):
        value = view.value(record) if _is_of_shape(view, record, shape) else None
        if slot.startswith("output") and value is not None:
            yield value.reshape(shape)


def _is_of_shape(view: StepView, record: int, shape: tuple[int, ...]) -> bool:
    """Whether a record has as many rows and classes, in float32."""
    own, dtype = view.shape(record) or (), view.dtype(record)
    rows = int(np.prod(own[:-1])) if own else 0
    return dtype in DTYPES and dtype == "float32" and (rows, *own[-1:]) == shape
