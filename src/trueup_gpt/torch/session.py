"""Everything that one process of a run needs, from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from trueup_gpt import session
from trueup_gpt.config import Config
from trueup_gpt.data import open_data
from trueup_gpt.optimize import weight_decay_groups
from trueup_gpt.parallel.running import Runner
from trueup_gpt.session import steps_of
from trueup_gpt.torch.limits import check_supported
from trueup_gpt.torch.optimizers import Groups, build_optimizer
from trueup_gpt.torch.parallel.mesh import Mesh, start_mesh
from trueup_gpt.torch.parallel.pipeline import runner_for
from trueup_gpt.torch.parallel.stages import Parallel, build
from trueup_gpt.torch.step import TrainStep

if TYPE_CHECKING:
    from trueup_gpt.torch.checkpoint import Checkpoints


@dataclass(slots=True)
class Session(session.Session):
    """A run in one process."""

    mesh: Mesh
    parallel: Parallel
    step: TrainStep

    def checkpoints(self, report: Callable[[str], None]) -> Checkpoints:
        """Of the run; ``report`` is told of each."""
        from trueup_gpt.torch.checkpoint import Checkpoints

        return Checkpoints(self, report)

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

    def _runner(self) -> Runner[Tensor]:
        return runner_for(self.parallel)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        for stage in self.parallel.stages:
            stage.eval()
        with torch.no_grad():
            yield
        for stage in self.parallel.stages:
            stage.train()

    def _sum(self, number: float) -> float:
        if not dist.is_initialized():
            return number
        wide = torch.float64 if self.mesh.device.type != "npu" else torch.float32
        total = torch.tensor([number], dtype=wide, device=self.mesh.device)
        dist.all_reduce(total)
        return float(total)


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
    seed = session.seed_python(config, mesh)
    torch.manual_seed(seed)
    if config.parallel.deterministic_mode:
        torch.use_deterministic_algorithms(True)
