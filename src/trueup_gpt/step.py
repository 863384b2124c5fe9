"""One training step, as both halves take it: forward and backward, reduction, norm, clipping, optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, SupportsFloat, TypeVar

from trueup.types.arrays import Array
from trueup_gpt.config import Config
from trueup_gpt.config.training import GradClipKwargs
from trueup_gpt.data import Batch
from trueup_gpt.optimize import LossScale, Schedules
from trueup_gpt.parallel.mesh import DATA, Mesh
from trueup_gpt.result import GradientNotFinite, StepResult


@dataclass(frozen=True, slots=True)
class Norms:
    """What one reduction over all processes tells of the gradients."""

    local: dict[str, float]
    """L2 norm of each parameter's gradient, the whole parameter's, before clipping"""
    total: float
    """of all gradients together"""
    sums: tuple[float, ...]
    """further numbers, summed over all processes"""

    @classmethod
    def of_squares(cls, values: Sequence[float], names: Sequence[str]) -> Norms:
        """From sums over all processes: each parameter's squares, in the order of ``names``, then others."""
        squared = values[: len(names)]
        local = {name: square**0.5 for name, square in zip(names, squared, strict=True)}
        return cls(local, sum(squared) ** 0.5, tuple(values[len(names) :]))

    @property
    def finite(self) -> bool:
        """Whether every gradient of every process is."""
        return self.total - self.total == 0.0


class HeldModel(Protocol):
    """What a process holds of the model, as far as a step asks."""

    @property
    def mesh(self) -> Mesh: ...


class Optimizer(Protocol):
    """Either framework's."""

    param_groups: list[dict[str, object]]


ParallelT = TypeVar("ParallelT", bound=HeldModel, covariant=True)
OptimizerT = TypeVar("OptimizerT", bound=Optimizer, covariant=True)


class TrainStep(ABC, Generic[ParallelT, OptimizerT]):
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
        self, parallel: ParallelT, optimizer: OptimizerT, config: Config, *, num_steps: int | None = None
    ) -> None:
        self.parallel, self.optimizer, self.config = parallel, optimizer, config
        self.scale = LossScale(config.training)
        self.schedules = Schedules(config.optimizer, num_steps=num_steps or config.training.training_iters)
        self.number = 0
        """of the next step"""

    def __call__(self, batches: Sequence[Batch[Array]]) -> StepResult:
        """Run the microbatches of this data-parallel rank, and update.

        Raises:
            GradientNotFinite: see ``check_for_nan_in_grad``.
        """
        scale, weights = self.scale.value, self._weights(batches)
        losses = self._run(batches, [weight * scale for weight in weights])
        norms = self._norms(1.0 / scale, also=self._loss_and_tokens(losses, weights, batches))
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

    @abstractmethod
    def _run(self, batches: Sequence[Batch[Array]], weights: Sequence[float]) -> Sequence[SupportsFloat]:
        """Forward and backward; gradients are reduced. The losses, where this process has the last stage."""

    @abstractmethod
    def _norms(self, factor: float, *, also: Sequence[float]) -> Norms:
        """Multiply the gradients by ``factor``; their norms, and the sums of ``also`` over all processes."""

    @abstractmethod
    def _clip(self, how: GradClipKwargs, total_norm: float) -> None:
        """All gradients, whose norm together is ``total_norm``."""

    @abstractmethod
    def _descend(self) -> None:
        """The optimizer's step; every process gets what it computes with."""

    @abstractmethod
    def _over_data(self, number: float) -> float:
        """Sum over the data-parallel ranks, of which there are several."""

    def _weights(self, batches: Sequence[Batch[Array]]) -> list[float]:
        """Of each microbatch's mean loss in the loss of the step."""
        training, mesh = self.config.training, self.parallel.mesh
        if training.calculate_per_token_loss:
            counts = [float(batch.loss_mask.sum()) for batch in batches]
            total = self._over_data(sum(counts)) if mesh.size(*DATA) > 1 else sum(counts)
            return [count / total for count in counts]
        if training.loss_reduction == "sum":
            return [1.0] * len(batches)
        return [1.0 / (len(batches) * mesh.size(*DATA))] * len(batches)

    def _loss_and_tokens(
        self, losses: Sequence[SupportsFloat], weights: Sequence[float], batches: Sequence[Batch[Array]]
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
        return tuple(rate for _ in self.optimizer.param_groups)

    def _update(self, norms: Norms) -> None:
        if not norms.finite and self.config.training.check_for_nan_in_grad and not self.scale.used:
            wrong = [name for name, norm in norms.local.items() if norm - norm != 0.0]
            raise GradientNotFinite(
                f"step {self.number}: gradients of {len(wrong)} parameters are not finite: {wrong[0]}, ...; "
                "trueup capture --task overflow_check finds where that began"
            )
        if norms.finite or not self.scale.used:
            if self.config.clip is not None:
                self._clip(self.config.clip, norms.total)
            self._descend()
        self.scale.update(finite=norms.finite)
