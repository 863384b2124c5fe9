"""What a run reads and how long it is, from the configuration and the mesh."""

from __future__ import annotations

import os

from trueup.errors import ConfigError
from trueup_gpt.config import Config
from trueup_gpt.data import Source
from trueup_gpt.data.source import Portion
from trueup_gpt.parallel.mesh import DATA, Mesh

_DEVICES = {"CPU": "cpu", "GPU": "cuda", "Ascend": "npu"}


def device_of(config: Config, given: str | None) -> str | None:
    """The device that the caller, TRUEUP_DEVICE or the configuration asks for; None: the one there is."""
    target = config.training.device_target
    return given or os.environ.get("TRUEUP_DEVICE") or (_DEVICES[target] if target else None)


def portion_of(config: Config, mesh: Mesh, step: int) -> Portion:
    """A process's microbatches of a step."""
    return Portion(
        step=step,
        dp_rank=mesh.coordinate(*DATA),
        dp_size=mesh.size(*DATA),
        num_microbatches=config.dataset.micro_batch_num,
    )


def rows_of_step(config: Config, mesh: Mesh) -> int:
    """Rows that all data-parallel ranks read in a step."""
    return config.dataset.batch_size * config.dataset.micro_batch_num * mesh.size(*DATA)


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
