"""The stages of a diagnosis, in the order of a training step. Another stage is another entry."""

from __future__ import annotations

from trueup.diagnosing.stages.config import ConfigStage
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.data import DataStage
from trueup.diagnosing.stages.forward import BackwardStage, ForwardStage
from trueup.diagnosing.stages.long_run import LongRunStage
from trueup.diagnosing.stages.next_loss import NextLossStage
from trueup.diagnosing.stages.optimizer import OptimizerStage
from trueup.diagnosing.stages.protocol import StageCheck, StageOutcome, StageStatus
from trueup.diagnosing.stages.reduction import ReductionStage
from trueup.diagnosing.stages.weights import WeightsStage

__all__ = ["STAGES", "Context", "StageCheck", "StageOutcome", "StageStatus"]

STAGES: tuple[StageCheck, ...] = (
    ConfigStage(),
    DataStage(),
    WeightsStage(),
    ForwardStage(),
    BackwardStage(),
    ReductionStage(),
    OptimizerStage(),
    NextLossStage(),
    LongRunStage(),
)
"""Walked in this order; the first that fails with confirmation gives the verdict."""
