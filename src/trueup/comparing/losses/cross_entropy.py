"""A loss worked out again in float64 from the logits and labels that it was made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trueup.comparing.thresholds import REPRODUCED
from trueup.types.arrays import Floats, Ints

MAX_LOGITS = 1 << 24
"""elements that are looked at"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropySum:
    """Sum over tokens of weight * -log softmax(logits)[label], over a number; shapes (N, V), (N,), (N,)."""

    log_probabilities: Floats
    labels: Ints
    weights: Floats
    over: float

    @property
    def picked(self) -> Floats:
        """log softmax(logits)[label] of every token."""
        return self.log_probabilities[np.arange(len(self.labels)), self.labels]

    @property
    def loss(self) -> float:
        """The exact loss."""
        return float(-(self.picked * self.weights).sum() / self.over)

    def spread(self, roundoff: float) -> float:
        """Standard deviation of the loss where every token's part is rounded to a dtype of this unit
        roundoff: half a step of it, evenly distributed."""
        exponent = np.frexp(self.picked)[1] - 1.0
        each = 2.0**exponent * 2.0 * roundoff / np.sqrt(12.0)
        return float(np.linalg.norm(each * self.weights) / abs(self.over))


def reproduced(
    value: float,
    logits: Floats,
    labels: Ints,
    *,
    ignore_index: int,
    masks: Sequence[Floats] = (),
    numbers: Sequence[float] = (),
) -> CrossEntropySum | None:
    """The cross-entropy that gives ``value``: a mean or a sum over the tokens that count, or over one of
    ``numbers``; None where none does to ``REPRODUCED``, as with smoothed labels or in a coarse dtype.

    Args:
        value: the loss.
        logits: (..., V).
        labels: as many as rows of logits; those outside 0 <= label < V and ``ignore_index`` do not count.
        ignore_index: the label that does not count.
        masks: weights of the tokens, each as many as labels; tried one after the other.
        numbers: what else the sum may have been divided by.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    flat = labels.ravel()
    if len(rows) != len(flat) or not 0 < rows.size <= MAX_LOGITS or not 0 < abs(value) < np.inf:
        return None
    counts = (flat != ignore_index) & (flat >= 0) & (flat < rows.shape[1])
    largest = rows.max(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        log_probabilities = rows - largest - np.log(np.exp(rows - largest).sum(axis=1, keepdims=True))
    for weights, over in _ways(counts.astype(np.float64), masks, numbers):
        found = CrossEntropySum(
            log_probabilities=log_probabilities, labels=np.where(counts, flat, 0), weights=weights, over=over
        )
        if over and abs(found.loss - value) <= REPRODUCED * abs(value):
            return found
    return None


def _ways(
    counts: Floats, masks: Sequence[Floats], numbers: Sequence[float]
) -> Iterator[tuple[Floats, float]]:
    for weights in (counts, *(counts * mask.ravel() for mask in masks if mask.size == counts.size)):
        for over in (float(weights.sum()), 1.0, *numbers):
            yield weights, over
