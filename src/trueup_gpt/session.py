"""Everything that one process of a run needs, from the configuration."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch

from trueup.errors import ConfigError
from trueup_gpt.config import Config
from trueup_gpt.data import Source, open_data
from trueup_gpt.data.source import Portion
from trueup_gpt.optimize import build_optimizer, weight_decay_groups
from trueup_gpt.optimize.optimizers import Groups
from trueup_gpt.parallel.mesh import DATA, Mesh, start_mesh
from trueup_gpt.parallel.stages import Parallel, build
from trueup_gpt.step import TrainStep


@dataclass(slots=True)
class Session:
    """A run in one process."""

    config: Config
    mesh: Mesh
    parallel: Parallel
    step: TrainStep
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
        return rows_of_step(self.config, self.mesh)


def rows_of_step(config: Config, mesh: Mesh) -> int:
    """Rows that all data-parallel ranks read in a step."""
    return config.dataset.batch_size * config.dataset.micro_batch_num * mesh.size(*DATA)


def prepare(config: Config, *, device: str | None = None) -> Session:
    """Join the process group, make the model's part, the optimizer and the data.

    Raises:
        ConfigError: the configuration fits neither the processes nor the data.
    """
    mesh = start_mesh(config, device)
    seed_streams(config, mesh)
    data, validation = open_data(config)
    num_steps = steps_of(config, data, mesh)
    parallel = build(config, mesh)
    optimizer = build_optimizer(config.optimizer, groups_of(parallel))
    step = TrainStep(parallel, optimizer, config, num_steps=num_steps)
    return Session(config, mesh, parallel, step, data, validation, num_steps)


def groups_of(parallel: Parallel) -> Groups:
    """What this process updates, with weight decay and without."""
    return weight_decay_groups(parallel.named(), parallel.config.optimizer.weight_decay)


def steps_of(config: Config, data: Source, mesh: Mesh) -> int:
    """Steps of the run: training_iters, else train_samples, else epochs.

    Raises:
        ConfigError: none of them is given.
    """
    rows = rows_of_step(config, mesh)
    if config.training.training_iters:
        return config.training.training_iters
    if config.dataset.train_samples:
        return config.dataset.train_samples // rows
    if config.training.epochs:
        return config.training.epochs * data.num_rows // rows
    raise ConfigError(
        "training_config: training_iters, or epochs, or train_samples of dataset_config, is missing"
    )


def seed_streams(config: Config, mesh: Mesh) -> None:
    """Random streams of dropout: one for each place along dp, cp and pp; see ``parallel/streams.py``."""
    place = 1009 * mesh.coordinate(*DATA) + 9176 * mesh.coordinate("pp") + 80141 * mesh.coordinate("cp")
    seed = config.training.seed + place
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if config.parallel.deterministic_mode:
        torch.use_deterministic_algorithms(True)
