"""One training step with torch: see ``trueup_gpt.step``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from trueup.types.arrays import Array
from trueup_gpt import step
from trueup_gpt.config import Config
from trueup_gpt.config.training import GradClipKwargs
from trueup_gpt.data import Batch
from trueup_gpt.parallel.mesh import DATA
from trueup_gpt.step import Norms
from trueup_gpt.torch.parallel.gradients import clip_gradients, gradient_norms, scale_gradients
from trueup_gpt.torch.parallel.pipeline import runner_for
from trueup_gpt.torch.parallel.stages import Parallel


class TrainStep(step.TrainStep[Parallel, torch.optim.Optimizer]):
    """The step of a run: gradients are kept on the parameters."""

    def __init__(
        self,
        parallel: Parallel,
        optimizer: torch.optim.Optimizer,
        config: Config,
        *,
        num_steps: int | None = None,
    ) -> None:
        super().__init__(parallel, optimizer, config, num_steps=num_steps)
        self._runner = runner_for(parallel)

    def _run(self, batches: Sequence[Batch[Array]], weights: Sequence[float]) -> Sequence[Tensor]:
        self.parallel.engine.zero_grad()
        losses = self._runner.run(batches, weights, backward=True)
        self.parallel.reduce_gradients()
        return losses

    def _norms(self, factor: float, *, also: Sequence[float]) -> Norms:
        parallel = self.parallel
        pieces, skip = parallel.engine.pieces, parallel.counted_elsewhere
        scale_gradients(pieces, factor)
        return gradient_norms(pieces, parallel.names, parallel.mesh, also=also, skip=skip)

    def _clip(self, how: GradClipKwargs, total_norm: float) -> None:
        clip_gradients(self.parallel.engine.pieces, how, total_norm)

    def _descend(self) -> None:
        self.optimizer.step()
        self.parallel.engine.publish()

    def _over_data(self, number: float) -> float:
        mesh = self.parallel.mesh
        total = torch.tensor(number, dtype=torch.float64, device=mesh.device)
        dist.all_reduce(total, group=mesh.group(*DATA))
        return float(total)
