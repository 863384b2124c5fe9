"""One training step: forward and backward of its microbatches, reduction, norm, clipping, optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from trueup.types.arrays import Array
from trueup_gpt.config import Config
from trueup_gpt.data import Batch
from trueup_gpt.optimize import LossScale, Schedules
from trueup_gpt.parallel.mesh import DATA
from trueup_gpt.result import GradientNotFinite, StepResult
from trueup_gpt.torch.parallel.gradients import Norms, clip_gradients, gradient_norms, scale_gradients
from trueup_gpt.torch.parallel.pipeline import runner_for
from trueup_gpt.torch.parallel.stages import Parallel


class TrainStep:
    """The step of a run.

    Args:
        parallel: the model.
        optimizer: over ``parallel.engine.pieces``.
        config: of the run.
        num_steps: of the run, for the schedules.

    Example:
        >>> result = step(batches)                                    # doctest: +SKIP
        >>> result.loss, result.grad_norm                             # doctest: +SKIP
        (5.545, 1.82)
    """

    def __init__(
        self,
        parallel: Parallel,
        optimizer: torch.optim.Optimizer,
        config: Config,
        *,
        num_steps: int | None = None,
    ) -> None:
        self.parallel, self.optimizer, self.config = parallel, optimizer, config
        self.scale = LossScale(config.training)
        self.schedules = Schedules(config.optimizer, num_steps=num_steps or config.training.training_iters)
        self.number = 0
        """of the next step"""
        self._runner = runner_for(parallel)

    def __call__(self, batches: Sequence[Batch[Array]]) -> StepResult:
        """Run the microbatches of this data-parallel rank, and update.

        Raises:
            GradientNotFinite: see ``check_for_nan_in_grad``.
        """
        parallel, scale = self.parallel, self.scale.value
        parallel.engine.zero_grad()
        weights = self._weights(batches)
        losses = self._runner.run(batches, [weight * scale for weight in weights], backward=True)
        parallel.reduce_gradients()
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

    def _weights(self, batches: Sequence[Batch[Array]]) -> list[float]:
        """Of each microbatch's mean loss in the loss of the step."""
        training, mesh = self.config.training, self.parallel.mesh
        if training.calculate_per_token_loss:
            counts = [float(batch.loss_mask.sum()) for batch in batches]
            total = torch.tensor(sum(counts), dtype=torch.float64, device=mesh.device)
            if mesh.size(*DATA) > 1:
                dist.all_reduce(total, group=mesh.group(*DATA))
            return [count / float(total) for count in counts]
        if training.loss_reduction == "sum":
            return [1.0] * len(batches)
        return [1.0 / (len(batches) * mesh.size(*DATA))] * len(batches)

    def _told(
        self, losses: Sequence[torch.Tensor], weights: Sequence[float], batches: Sequence[Batch[Array]]
    ) -> list[float]:
        """Loss and tokens of this process, counted once: by the last stage's first tp rank."""
        mesh = self.parallel.mesh
        if not losses or mesh.coordinate("tp"):
            return [0.0, 0.0]
        loss = sum(float(one) * weight for one, weight in zip(losses, weights, strict=True))
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
            self.optimizer.step()
            self.parallel.engine.publish()
        self.scale.update(finite=norms.finite)
