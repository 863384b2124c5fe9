"""Everything that one process of a run needs, from the configuration."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from trueup_gpt.config import Config
from trueup_gpt.data import Source, open_data
from trueup_gpt.data.source import Portion
from trueup_gpt.optimize import weight_decay_groups
from trueup_gpt.parallel.mesh import DATA
from trueup_gpt.session import portion_of, rows_of_step, steps_of
from trueup_gpt.torch.limits import check_supported
from trueup_gpt.torch.optimizers import Groups, build_optimizer
from trueup_gpt.torch.parallel.mesh import Mesh, start_mesh
from trueup_gpt.torch.parallel.pipeline import runner_for
from trueup_gpt.torch.parallel.stages import Parallel, build
from trueup_gpt.torch.step import TrainStep

if TYPE_CHECKING:
    from trueup_gpt.torch.checkpoint import Checkpoints


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
        return portion_of(self.config, self.mesh, step)

    @property
    def rows_of_step(self) -> int:
        """Rows that all data-parallel ranks read in a step."""
        return rows_of_step(self.config, self.mesh)

    def checkpoints(self, said: Callable[[str], None]) -> Checkpoints:
        """Of the run; ``said`` is told of each."""
        from trueup_gpt.torch.checkpoint import Checkpoints

        return Checkpoints(self, said)

    def largest(self, number: int) -> int:
        """The largest of all processes' numbers."""
        if not dist.is_initialized():
            return number
        found = torch.tensor([float(number)], device=self.mesh.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found.item())

    def device(self) -> str:
        """What it runs on."""
        return str(self.mesh.device)

    def num_parameters(self) -> int:
        """Held in this process."""
        return sum(parameter.numel() for parameter in self.parallel.parameters.values())

    def memory_bytes(self) -> float | None:
        """The most that was allocated on the device so far; None on a CPU."""
        return None if self.mesh.device.type == "cpu" else float(torch.accelerator.max_memory_allocated())

    def evaluate(self) -> float:
        """Mean loss over the first ``eval_iters`` steps of the validation data; alike in every process."""
        assert self.validation is not None
        runner, mesh = runner_for(self.parallel), self.mesh
        count, eval_iters = self.config.dataset.micro_batch_num, self.config.training.eval_iters
        total = torch.zeros(1, dtype=torch.float64 if mesh.device.type != "npu" else torch.float32)
        for stage in self.parallel.stages:
            stage.eval()
        with torch.no_grad():
            for number in range(eval_iters):
                batches = self.validation.read(self.portion(number))
                losses = runner.run(batches, [1.0] * count, backward=False)
                if losses and not mesh.coordinate("tp"):
                    total += sum(float(loss) for loss in losses)
        for stage in self.parallel.stages:
            stage.train()
        total = total.to(mesh.device)
        if dist.is_initialized():
            dist.all_reduce(total)
        return float(total) / (eval_iters * count * mesh.size(*DATA))


def prepare(config: Config, *, device: str | None = None) -> Session:
    """Join the process group, make the model's part, the optimizer and the data.

    Raises:
        ConfigError: the configuration fits neither the processes nor the data.
    """
    check_supported(config)
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


def seed_streams(config: Config, mesh: Mesh) -> None:
    """Random streams of dropout: one for each place along dp, cp and pp; see ``parallel/streams.py``."""
    place = 1009 * mesh.coordinate(*DATA) + 9176 * mesh.coordinate("pp") + 80141 * mesh.coordinate("cp")
    seed = config.training.seed + place
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if config.parallel.deterministic_mode:
        torch.use_deterministic_algorithms(True)
