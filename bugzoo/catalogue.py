"""What an entry of the collection is, and how one is added.

An entry is a function that changes one thing of a ``Training``, with its name and what is known about it:

    @fault("norm-eps", owner="layers.2.ln1", phase="forward", summary="norm eps 1e-6 for 1e-5 in layer 2")
    def norm_eps(training: Training) -> None:
        training.model.layers[2].ln1.eps = 1e-6
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bugzoo.models.gpt import GPT, GPTConfig


@dataclass(kw_only=True)
class Training:
    """Everything a training step is made of; planting a fault changes one thing of it."""

    config: GPTConfig
    model: GPT
    optimizer: torch.optim.Optimizer
    batch: Callable[[int], tuple[Tensor, Tensor]]
    """step -> token ids and labels"""
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    """model, token ids, labels -> loss"""


Plant = Callable[[Training], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry: a fault, or a change that is none."""

    name: str
    summary: str
    """what a person did"""
    plant: Plant
    phase: str | None = None
    """of the first record that must differ (docs/trace-format.md); None: none may differ beyond rounding"""
    owner: str | None = None
    """fqn of the module whose own code has the fault; None: no single module (the optimizer, the data)"""

    def is_named_by(self, *, phase: str | None, owner: str | None, where: str | None) -> bool:
        """Whether a verdict names the place: the right phase, and the owner or something inside it.

        Where no module owns the fault, the phase alone names it, provided that a site is named at all.
        """
        if phase != self.phase or where is None:
            return False
        return self.owner is None or owner == self.owner or (owner or "").startswith(self.owner + ".")


FAULTS: dict[str, Change] = {}
BENIGN: dict[str, Change] = {}


def fault(name: str, *, summary: str, phase: str, owner: str | None) -> Callable[[Plant], Plant]:
    """Add the decorated function to the faults."""

    def add(plant: Plant) -> Plant:
        FAULTS[name] = Change(name=name, summary=summary, plant=plant, phase=phase, owner=owner)
        return plant

    return add


def benign(name: str, *, summary: str) -> Callable[[Plant], Plant]:
    """Add the decorated function to the changes that are no fault."""

    def add(plant: Plant) -> Plant:
        BENIGN[name] = Change(name=name, summary=summary, plant=plant)
        return plant

    return add
