"""Parameter groups, schedules, and the scale of the loss: the same on either framework."""

from trueup_gpt.optimize.groups import Group, decays, weight_decay_groups
from trueup_gpt.optimize.loss_scale import LossScale
from trueup_gpt.optimize.schedules import Schedules

__all__ = ["Group", "LossScale", "Schedules", "decays", "weight_decay_groups"]
