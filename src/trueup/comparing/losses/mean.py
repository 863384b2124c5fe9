"""How far losses may lie apart that were made from the same logits: what is known of a mean of rounded parts.

Each token's part is a difference of the logits' size (a logit less the log of a sum), rounded by the coarsest
dtype in use, u, each token by itself: the mean over T tokens is off by u times that size over the root of T.
Each run then rounds its loss to the dtype that holds it, which sets two means that are close up to one unit
in the last place further apart. The first part shrinks with every microbatch that is looked at, and a wrong
factor does not: losses are judged by their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trueup.comparing.thresholds import MEAN_ROUNDINGS
from trueup.types.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchLosses:
    """The losses of some microbatches in both runs, and what they were made from; arrays of one length."""

    target: Floats
    reference: Floats
    tokens: Floats
    """rows of the logits"""
    largest: Floats
    """magnitude of any logit"""
    coarsest: float
    """unit roundoff of the coarsest dtype before"""
    own: float
    """unit roundoff of the dtype that holds the losses"""

    @property
    def size(self) -> float:
        """Of the reference's sum; 0 where its parts cancel or none counts: then nothing is known."""
        return float(np.abs(self.reference).sum())

    @property
    def error(self) -> float:
        """Of the sum, relative."""
        return float(abs((self.target - self.reference).sum())) / self.size

    @property
    def tolerance(self) -> float:
        """What rounding makes of it at most."""
        size = self.size
        parts = max(2.0, float(self.largest.max()) / (size / len(self.reference)))
        greater = np.maximum(np.abs(self.target), np.abs(self.reference))
        last_places = 2 * self.own * np.where(greater > 0, np.exp2(np.frexp(greater)[1] - 1.0), 0.0)
        made = MEAN_ROUNDINGS * parts / 2 * self.coarsest / np.sqrt(max(float(self.tokens.sum()), 1.0))
        return float(made + last_places.sum() / size)
