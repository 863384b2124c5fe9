"""Everything that one process of a run needs, from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mindspore
from mindspore import Tensor

from trueup_gpt import session
from trueup_gpt.config import Config
from trueup_gpt.data import open_data
from trueup_gpt.launching import asked_to_stop
from trueup_gpt.mindspore.limits import check_supported
from trueup_gpt.mindspore.optimizers import Groups, build_optimizer
from trueup_gpt.mindspore.parallel.collectives import all_reduce
from trueup_gpt.mindspore.parallel.mesh import Mesh, start_mesh
from trueup_gpt.mindspore.parallel.pipeline import runner_for
from trueup_gpt.mindspore.parallel.stages import Parallel, build
from trueup_gpt.mindspore.step import TrainStep
from trueup_gpt.optimize import weight_decay_groups
from trueup_gpt.parallel.mesh import AXES
from trueup_gpt.parallel.running import Runner
from trueup_gpt.session import steps_of

if TYPE_CHECKING:
    from trueup_gpt.mindspore.checkpoint import Checkpoints


@dataclass(slots=True)
class Session(session.Session):
    """A run in one process."""

    mesh: Mesh
    parallel: Parallel
    step: TrainStep

    def checkpoints(self, report: Callable[[str], None]) -> Checkpoints:
        """Of the run; ``report`` is told of each."""
        from trueup_gpt.mindspore.checkpoint import Checkpoints

        return Checkpoints(self, report)

    def largest(self, number: int) -> int:
        """The largest of all processes' numbers, and of the signal that the launching process was given."""
        number = number or (asked_to_stop() if self.mesh.rank == 0 else 0)
        if self.mesh.size(*AXES) == 1:
            return number
        found = all_reduce(Tensor([number], mindspore.float32), self.mesh.group(*AXES), largest=True)
        return int(found.asnumpy()[0])

    def device(self) -> str:
        """What it runs on."""
        return self.mesh.device

    def num_parameters(self) -> int:
        """Held in this process."""
        return sum(int(parameter.size) for parameter in self.parallel.parameters.values())

    def memory_bytes(self) -> float | None:
        """The most that was allocated on the device so far; None on a CPU."""
        return None if self.mesh.device == "cpu" else float(mindspore.runtime.max_memory_allocated())

    def _runner(self) -> Runner[Tensor]:
        return runner_for(self.parallel)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        for stage in self.parallel.stages:
            stage.set_train(False)
        yield
        for stage in self.parallel.stages:
            stage.set_train()

    def _sum(self, number: float) -> float:
        if self.mesh.size(*AXES) == 1:
            return number
        dtype = mindspore.float64 if self.mesh.device == "cpu" else mindspore.float32
        return float(all_reduce(Tensor([number], dtype), self.mesh.group(*AXES)).asnumpy()[0])


def prepare(config: Config, *, device: str | None = None) -> Session:
    """Join the other processes, make the model's part, the optimizer and the data.

    Raises:
        ConfigError: the configuration fits neither the processes nor the data, or needs PyTorch.
    """
    check_supported(config, device)
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
    """Random streams of dropout: one for each place along dp, cp and pp."""
    seed = session.seed_python(config, mesh)
    mindspore.set_seed(seed % 2**32)
    mindspore.manual_seed(seed)
    if config.parallel.deterministic_mode:
        mindspore.set_deterministic(True)
