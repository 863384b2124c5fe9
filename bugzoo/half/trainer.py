"""The reference trainer's MindSpore half in this process, with a part of its code replaced."""

from __future__ import annotations

import os

from bugzoo.bases import Base
from bugzoo.replacing import Replacing, configuration
from trueup_gpt.launching import place_in_world
from trueup_gpt.mindspore.session import Session, prepare
from trueup_gpt.result import StepResult


class MindSporeTrainer(Replacing):
    """As ``bugzoo.reference_trainer.ReferenceTrainer`` for the other half."""

    half = "trueup_gpt.mindspore"

    def __init__(self, base: Base, *, seed: int = 0) -> None:
        super().__init__()
        self.config = configuration(base, seed=seed)
        self.rank, self.world = place_in_world(os.environ)
        self._session: Session | None = None
        self._number = 0

    @property
    def session(self) -> Session:
        """The run, started when it is first asked for: a fault is planted before."""
        if self._session is None:
            self._session = prepare(self.config, device="cpu")
        return self._session

    def step(self) -> StepResult:
        """One step."""
        batches = self.session.data.read(self.session.portion(self._number))
        self._number += 1
        return self.session.step(batches)
