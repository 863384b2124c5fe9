"""Optimizers, their schedules, and the scale of the loss."""

from trueup_gpt.optimize.loss_scale import LossScale
from trueup_gpt.optimize.optimizers import build_optimizer, decays, weight_decay_groups
from trueup_gpt.optimize.schedules import Schedules

__all__ = ["LossScale", "Schedules", "build_optimizer", "decays", "weight_decay_groups"]
