"""One training step with MindSpore: see ``trueup_gpt.step``."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore
from mindspore import Tensor

from trueup.types.arrays import Array
from trueup_gpt import step
from trueup_gpt.config import Config
from trueup_gpt.config.training import GradClipKwargs
from trueup_gpt.data import Batch
from trueup_gpt.mindspore.optimizers import Optimizer
from trueup_gpt.mindspore.parallel.collectives import all_reduce
from trueup_gpt.mindspore.parallel.gradients import clip_gradients, gradient_norms, scale_gradients
from trueup_gpt.mindspore.parallel.pieces import Piece
from trueup_gpt.mindspore.parallel.pipeline import runner_for
from trueup_gpt.mindspore.parallel.stages import Parallel
from trueup_gpt.parallel.mesh import DATA
from trueup_gpt.step import Norms


class TrainStep(step.TrainStep[Parallel, Optimizer]):
    """The step of a run: the runner gives gradients back, and the optimizer is called with them."""

    def __init__(
        self, parallel: Parallel, optimizer: Optimizer, config: Config, *, num_steps: int | None = None
    ) -> None:
        super().__init__(parallel, optimizer, config, num_steps=num_steps)
        self._runner = runner_for(parallel)
        pieces = {id(piece.parameter): piece for piece in parallel.engine.pieces}
        self._in_groups = [pieces[id(one)] for one in optimizer.parameters]

    def index_of(self, piece: Piece) -> int:
        """Of the piece among the optimizer's parameters."""
        return next(index for index, one in enumerate(self._in_groups) if one is piece)

    def _run(self, batches: Sequence[Batch[Array]], weights: Sequence[float]) -> Sequence[Tensor]:
        losses = self._runner.run(batches, weights, backward=True)
        self.parallel.reduce_gradients(self._runner.gradients)
        return losses

    def _norms(self, factor: float, *, also: Sequence[float]) -> Norms:
        parallel = self.parallel
        pieces, skip = parallel.engine.pieces, parallel.counted_elsewhere
        scale_gradients(pieces, factor)
        return gradient_norms(pieces, parallel.names, parallel.mesh, also=also, skip=skip)

    def _clip(self, how: GradClipKwargs, total_norm: float) -> None:
        clip_gradients(self.parallel.engine.pieces, how, total_norm)

    def _descend(self) -> None:
        self.optimizer(tuple(piece.gradient for piece in self._in_groups))
        self.parallel.engine.publish()

    def _over_data(self, number: float) -> float:
        return float(all_reduce(Tensor(number, mindspore.float32), self.parallel.mesh.group(*DATA)))
