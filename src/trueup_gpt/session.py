"""A run in one process, as both halves hold it: what it reads, how long it is, what the loop asks of it."""

from __future__ import annotations

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsFloat

import numpy as np

from trueup.errors import ConfigError
from trueup_gpt.config import Config
from trueup_gpt.data import Source
from trueup_gpt.data.source import Portion
from trueup_gpt.parallel.mesh import DATA, Mesh
from trueup_gpt.parallel.running import Runner
from trueup_gpt.step import HeldModel, Optimizer, TrainStep

if TYPE_CHECKING:
    from trueup_gpt.checkpoints import Checkpoints

_DEVICES = {"CPU": "cpu", "GPU": "cuda", "Ascend": "npu"}


@dataclass(slots=True)
class Session(ABC):
    """A run in one process."""

    config: Config
    mesh: Mesh
    parallel: HeldModel
    step: TrainStep[HeldModel, Optimizer]
    data: Source
    validation: Source | None
    num_steps: int

    def portion(self, step: int) -> Portion:
        """This process's microbatches of a step."""
        return Portion(
            step=step,
            dp_rank=self.mesh.coordinate(*DATA),
            dp_size=self.mesh.size(*DATA),
            num_microbatches=self.config.dataset.micro_batch_num,
        )

    @property
    def rows_of_step(self) -> int:
        """Rows that all data-parallel ranks read in a step."""
        return _rows_of_step(self.config, self.mesh)

    def evaluate(self) -> float:
        """Mean loss over the first ``eval_iters`` steps of the validation data; alike in every process."""
        assert self.validation is not None
        runner, total = self._runner(), 0.0
        count, eval_iters = self.config.dataset.micro_batch_num, self.config.training.eval_iters
        with self._evaluating():
            for number in range(eval_iters):
                losses = runner.run(self.validation.read(self.portion(number)), [1.0] * count, backward=False)
                if not self.mesh.coordinate("tp"):
                    total += sum(float(loss) for loss in losses)
        return self._sum(total) / (eval_iters * count * self.mesh.size(*DATA))

    @abstractmethod
    def _runner(self) -> Runner[SupportsFloat]:
        """One of its own, for an evaluation."""

    @abstractmethod
    def _evaluating(self) -> AbstractContextManager[object]:
        """While it lasts, the model does not train."""

    @abstractmethod
    def _sum(self, number: float) -> float:
        """Over all processes."""

    @abstractmethod
    def largest(self, number: int) -> int:
        """The largest of all processes' numbers."""

    @abstractmethod
    def checkpoints(self, report: Callable[[str], None]) -> Checkpoints:
        """Of the run; ``report`` is told of each."""

    @abstractmethod
    def device(self) -> str:
        """What it runs on."""

    @abstractmethod
    def num_parameters(self) -> int:
        """Held in this process."""

    @abstractmethod
    def memory_bytes(self) -> float | None:
        """The most that was allocated on the device so far; None on a CPU."""


def device_of(config: Config, given: str | None) -> str | None:
    """The device that the caller, TRUEUP_DEVICE or the configuration asks for; None: the one there is."""
    target = config.training.device_target
    return given or os.environ.get("TRUEUP_DEVICE") or (_DEVICES[target] if target else None)


def seed_python(config: Config, mesh: Mesh) -> int:
    """Seed Python's and numpy's random streams; the seed: one for each place along dp, cp and pp."""
    place = 1009 * mesh.coordinate(*DATA) + 9176 * mesh.coordinate("pp") + 80141 * mesh.coordinate("cp")
    seed = config.training.seed + place
    random.seed(seed)
    np.random.seed(seed % 2**32)
    return seed


def _rows_of_step(config: Config, mesh: Mesh) -> int:
    return config.dataset.batch_size * config.dataset.micro_batch_num * mesh.size(*DATA)


def steps_of(config: Config, data: Source, mesh: Mesh) -> int:
    """Steps of the run: training_iters, else train_samples, else epochs.

    Raises:
        ConfigError: none of them is given.
    """
    rows = _rows_of_step(config, mesh)
    if config.training.training_iters:
        return config.training.training_iters
    if config.dataset.train_samples:
        return config.dataset.train_samples // rows
    if config.training.epochs:
        return config.training.epochs * data.num_rows // rows
    raise ConfigError(
        "training_config: training_iters, or epochs, or train_samples of dataset_config, is missing"
    )
