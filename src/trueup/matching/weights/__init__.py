"""Which weights of two implementations are the same numbers, and how one is made of the other."""

from __future__ import annotations

from trueup.matching.weights.infer import Atom, InferredWeights, infer, infer_plan
from trueup.matching.weights.structure import by_structure
from trueup.matching.weights.table import StepWeights, WeightFacts, WeightTable

__all__ = [
    "Atom",
    "InferredWeights",
    "StepWeights",
    "WeightFacts",
    "WeightTable",
    "by_structure",
    "infer",
    "infer_plan",
]
