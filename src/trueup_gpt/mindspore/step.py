"""One training step: forward and backward of its microbatches, reduction, norm, clipping, optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore
from mindspore import Tensor

from trueup.types.arrays import Array
from trueup_gpt.config import Config
from trueup_gpt.data import Batch
from trueup_gpt.mindspore.optimizers import Optimizer
from trueup_gpt.mindspore.parallel.collectives import all_reduce
from trueup_gpt.mindspore.parallel.gradients import Norms, clip_gradients, gradient_norms, scale_gradients
from trueup_gpt.mindspore.parallel.pieces import Piece
from trueup_gpt.mindspore.parallel.pipeline import runner_for
from trueup_gpt.mindspore.parallel.stages import Parallel
from trueup_gpt.optimize import LossScale, Schedules
from trueup_gpt.parallel.mesh import DATA
from trueup_gpt.result import GradientNotFinite, StepResult


class TrainStep:
    """The step of a run.

    Args:
        parallel: the model.
        optimizer: over ``parallel.engine.pieces``.
        config: of the run.
        num_steps: of the run, for the schedules.
    """

    def __init__(
        self, parallel: Parallel, optimizer: Optimizer, config: Config, *, num_steps: int | None = None
    ) -> None:
        self.parallel, self.optimizer, self.config = parallel, optimizer, config
        self.scale = LossScale(config.training)
        self.schedules = Schedules(config.optimizer, num_steps=num_steps or config.training.training_iters)
        self.number = 0
        """of the next step"""
        self._runner = runner_for(parallel)
        pieces = {id(piece.parameter): piece for piece in parallel.engine.pieces}
        self._in_groups = [pieces[id(one)] for one in optimizer.parameters]

    def __call__(self, batches: Sequence[Batch[Array]]) -> StepResult:
        """Run the microbatches of this data-parallel rank, and update.

        Raises:
            GradientNotFinite: see ``check_for_nan_in_grad``.
        """
        parallel, scale = self.parallel, self.scale.value
        weights = self._weights(batches)
        losses = self._runner.run(batches, [weight * scale for weight in weights], backward=True)
        parallel.reduce_gradients(self._runner.gradients)
        pieces = parallel.engine.pieces
        scale_gradients(pieces, 1.0 / scale)
        norms = gradient_norms(
            pieces,
            parallel.names,
            parallel.mesh,
            also=self._told(losses, weights, batches),
            skip=parallel.counted_elsewhere,
        )
        rates = self._set_rates()
        result = StepResult(
            step=self.number,
            loss=norms.sums[0],
            num_tokens=norms.sums[1],
            grad_norm=norms.total,
            finite=norms.finite,
            loss_scale=scale,
            learning_rates=rates,
            local_norms=norms.local,
        )
        self._update(norms)
        self.number += 1
        return result

    def index_of(self, piece: Piece) -> int:
        """Of the piece among the optimizer's parameters."""
        return next(index for index, one in enumerate(self._in_groups) if one is piece)

    def _weights(self, batches: Sequence[Batch[Array]]) -> list[float]:
        """Of each microbatch's mean loss in the loss of the step."""
        training, mesh = self.config.training, self.parallel.mesh
        if training.calculate_per_token_loss:
            counts = [float(batch.loss_mask.sum()) for batch in batches]
            total = sum(counts)
            if mesh.size(*DATA) > 1:
                total = float(all_reduce(Tensor(total, mindspore.float32), mesh.group(*DATA)))
            return [count / total for count in counts]
        if training.loss_reduction == "sum":
            return [1.0] * len(batches)
        return [1.0 / (len(batches) * mesh.size(*DATA))] * len(batches)

    def _told(
        self, losses: Sequence[Tensor], weights: Sequence[float], batches: Sequence[Batch[Array]]
    ) -> list[float]:
        """Loss and tokens of this process, counted once: by the last stage's first tp rank."""
        mesh = self.parallel.mesh
        if not losses or mesh.coordinate("tp"):
            return [0.0, 0.0]
        loss = sum(float(one.asnumpy()) * weight for one, weight in zip(losses, weights, strict=True))
        tokens = 0.0 if mesh.coordinate("cp") else sum(float(batch.loss_mask.sum()) for batch in batches)
        return [loss, tokens]

    def _set_rates(self) -> tuple[float, ...]:
        rate, decay = self.schedules.learning_rate(self.number), self.schedules.weight_decay(self.number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
            if group.get("decays", True):
                group["weight_decay"] = decay
        return tuple(float(group["lr"]) for group in self.optimizer.param_groups)

    def _update(self, norms: Norms) -> None:
        pieces, clip = self.parallel.engine.pieces, self.config.clip
        if not norms.finite and self.config.training.check_for_nan_in_grad and not self.scale.used:
            wrong = [name for name, norm in norms.local.items() if norm - norm != 0.0]
            raise GradientNotFinite(
                f"step {self.number}: gradients of {len(wrong)} parameters are not finite: {wrong[0]}, ...; "
                "trueup capture --task overflow_check finds where that began"
            )
        if norms.finite or not self.scale.used:
            if clip is not None:
                clip_gradients(pieces, clip, norms.total)
            self.optimizer(tuple(piece.gradient for piece in self._in_groups))
            self.parallel.engine.publish()
        self.scale.update(finite=norms.finite)
