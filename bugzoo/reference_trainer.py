"""A base program that is the reference trainer in some parallel layout, or in one process.

A fault replaces one part of the trainer's code before the first step; nothing else.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from bugzoo.bases import Base
from bugzoo.models.ranks import rank_and_world
from bugzoo.replacing import Replacing, configuration
from trueup_gpt import prepare
from trueup_gpt.step import Norms
from trueup_gpt.torch import session, step
from trueup_gpt.torch.parallel.stages import Stage, model_on_meta


class ReferenceTrainer(Replacing):
    """The trainer in this process, as ``bugzoo.trainer.Trainer`` is for the family's programs."""

    half = "trueup_gpt.torch"

    def __init__(self, base: Base, *, seed: int = 0) -> None:
        super().__init__()
        self.config = configuration(base, seed=seed)
        self.rank, self.world = rank_and_world()
        self.data_step = 0
        """number of the next step's batches"""
        self._session: session.Session | None = None
        self._norms: Norms | None = None

    @property
    def session(self) -> session.Session:
        """The run, started when it is first asked for: a fault is planted before."""
        if self._session is None:
            self._session = prepare(self.config, device="cpu")
            self._session.step._update = self._note  # type: ignore[method-assign]
        return self._session

    @property
    def mesh(self) -> Any:
        """Of the run."""
        return self.session.mesh

    @property
    def model(self) -> nn.Module:
        """The stages of this process."""
        return nn.ModuleList(self.session.parallel.stages)

    @property
    def optimizer(self) -> Any:
        """That of this process."""
        return self.session.step.optimizer

    def named_weights(self) -> list[tuple[str, nn.Parameter]]:
        """What the optimizer of this process updates."""
        return [(piece.fqn, piece.parameter) for piece in self.session.parallel.engine.pieces]

    def step(self) -> float:
        """One step; the loss."""
        batches = self.session.data.read(self.session.portion(self.data_step))
        self.data_step += 1
        return self.session.step(batches).loss

    def _note(self, norms: Norms) -> None:
        self._norms = norms
        self.update()

    def update(self) -> None:
        """Clip, and one optimizer step."""
        assert self._norms is not None
        step.TrainStep._update(self.session.step, self._norms)


def stage_on_meta(base: Base) -> nn.Module:
    """The whole model without values, with the names its modules have in a run."""
    return Stage(model_on_meta(configuration(base)), 0)
