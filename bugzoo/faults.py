"""The faults. Each has happened to somebody; each leaves a program that trains."""

from __future__ import annotations

import torch
from torch import nn

from bugzoo.catalogue import FAULTS, Training, fault

__all__ = ["FAULTS"]


@fault(
    "rope-bf16",
    summary="rotary tables of layer 2 computed in bfloat16",
    phase="forward",
    owner="layers.2.attn.rotary",
)
def rope_in_bfloat16(training: Training) -> None:
    """As in a port that lost the upcast."""
    training.model.layers[2].attn.rotary.compute_dtype = torch.bfloat16


@fault("norm-eps", summary="norm eps 1e-6 for 1e-5 in layer 2", phase="forward", owner="layers.2.ln1")
def norm_eps(training: Training) -> None:
    """The other framework's default."""
    training.model.layers[2].ln1.eps = 1e-6


@fault("attention-scale", summary="attention scale x1.01 in layer 1", phase="forward", owner="layers.1.attn")
def attention_scale(training: Training) -> None:
    """A rounded constant."""
    training.model.layers[1].attn.scale *= 1.01


@fault(
    "mask-off-by-one",
    summary="causal mask of layer 3 off by one: a token sees its successor",
    phase="forward",
    owner="layers.3.attn",
)
def mask_off_by_one(training: Training) -> None:
    """``triu(2)`` for ``triu(1)``."""
    training.model.layers[3].attn.mask_offset = 2


@fault(
    "gelu-tanh",
    summary="tanh approximation of GELU in layer 1",
    phase="forward",
    owner="layers.1.mlp.act",
)
def tanh_gelu(training: Training) -> None:
    """What many configurations call just "gelu"."""
    training.model.layers[1].mlp.act = nn.GELU(approximate="tanh")


@fault(
    "gradient-scale",
    summary="gradient of one weight of layer 1 x1.01",
    phase="param_grad",
    owner="layers.1.mlp.up",
)
def gradient_scale(training: Training) -> None:
    """A reduction that counts some tokens twice."""
    training.model.layers[1].mlp.up.weight.register_hook(lambda gradient: gradient * 1.01)


@fault("weight-decay", summary="weight decay 0.1 for 0.01", phase="optimizer", owner=None)
def weight_decay(training: Training) -> None:
    """The two common defaults of AdamW."""
    for group in training.optimizer.param_groups:
        group["weight_decay"] = 0.1
