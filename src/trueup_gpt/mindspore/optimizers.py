"""The optimizers over groups of parameters, each as torch has it; their state goes by torch's names."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mindspore
from mindspore import Parameter, ParameterTuple, Tensor, mint, ops
from mindspore.experimental import optim

from trueup_gpt.config import OptimizerConfig
from trueup_gpt.mindspore.model.numbers import number
from trueup_gpt.optimize import Group

Groups = list[Group[Parameter]]
_divide = ops.RealDiv()
"""The bits of ``/``, which takes four times as long on a CPU (MindSpore 2.10)."""


class Optimizer(optim.Optimizer):
    """Goes through the groups; rates and decays are plain numbers, set before each step."""

    def __init__(self, groups: Groups, rate: float, names: Sequence[str]) -> None:
        super().__init__([dict(group) for group in groups], {"lr": rate, "weight_decay": 0.0})
        for group in self.param_groups:
            group["lr"] = rate
        self.number = 0
        """of steps taken"""
        self._states = names
        for name in names:
            setattr(self, name, self.parameters.clone(prefix=name, init="zeros"))

    def state_of(self, index: int) -> dict[str, Parameter]:
        """Of one parameter."""
        return {name: getattr(self, name)[index] for name in self._states}

    def loaded(self, number: int) -> None:
        """Its state is that of a run after ``number`` steps."""
        self.number = number

    def construct(self, gradients: Sequence[Tensor]) -> None:
        self.number += 1
        index = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                self.update(index, parameter, gradients[index], group["lr"], group["weight_decay"])
                index += 1

    def update(self, index: int, parameter: Parameter, gradient: Tensor, rate: float, decay: float) -> None:
        """Of one parameter."""
        raise NotImplementedError


class SGD(Optimizer):
    """Momentum, and Nesterov's, as torch's."""

    def __init__(self, groups: Groups, rate: float, *, momentum: float, nesterov: bool) -> None:
        super().__init__(groups, rate, ("momentum_buffer",) if momentum else ())
        self.momentum, self.nesterov = momentum, nesterov

    def update(self, index: int, parameter: Parameter, gradient: Tensor, rate: float, decay: float) -> None:
        """See ``Optimizer``."""
        if decay:
            gradient = gradient + parameter * number(decay, gradient)
        if self.momentum:
            kept, momentum = self.momentum_buffer[index], number(self.momentum, gradient)
            kept_now = gradient if self.number == 1 else kept * momentum + gradient
            ops.assign(kept, kept_now)
            gradient = gradient + kept_now * momentum if self.nesterov else kept_now
        ops.assign(parameter, parameter - gradient * number(rate, gradient))


class Adam(Optimizer):
    """Adam with the decay in the gradient."""

    DECOUPLED = False

    def __init__(self, groups: Groups, rate: float, *, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, rate, ("exp_avg", "exp_avg_sq"))
        for group in self.param_groups:
            group |= {"betas": betas, "eps": eps}
        self.betas, self.eps = betas, eps
        counts = [
            Parameter(Tensor(0.0, mindspore.float32), name=f"step.{one.name}") for one in self.parameters
        ]
        self.step = ParameterTuple(counts)
        self._states = (*self._states, "step")

    def construct(self, gradients: Sequence[Tensor]) -> None:
        super().construct(gradients)
        for count in self.step:
            ops.assign(count, Tensor(float(self.number), mindspore.float32))

    def loaded(self, number: int) -> None:
        """Its own count: a step that was skipped does not count."""
        self.number = int(self.step[0].asnumpy())

    def update(self, index: int, parameter: Parameter, gradient: Tensor, rate: float, decay: float) -> None:
        """See ``Optimizer``."""
        (first, second), mean, square = self.betas, self.exp_avg[index], self.exp_avg_sq[index]
        values = parameter.value()
        if self.DECOUPLED:
            values = values * number(1.0 - rate * decay, values)
        elif decay:
            gradient = gradient + values * number(decay, values)
        mean_now = mean + (gradient - mean) * number(1.0 - first, mean)
        square_now = square * number(second, mean) + gradient * gradient * number(1.0 - second, mean)
        root = _divide(mint.sqrt(square_now), number(math.sqrt(1.0 - second**self.number), mean))
        ops.assign(mean, mean_now)
        ops.assign(square, square_now)
        step = number(rate / (1.0 - first**self.number), mean)
        ops.assign(parameter, values - _divide(mean_now, root + number(self.eps, mean)) * step)


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    DECOUPLED = True


class Came(Optimizer):
    """CAME: means over rows and columns of g^2 and of the update's instability, in place of second moments.

    Source: Luo et al., "CAME: Confidence-guided Adaptive Memory Efficient Optimization" (ACL 2023), algorithm
    2, without relative step sizes.
    """

    def __init__(
        self, groups: Groups, rate: float, *, betas: tuple[float, float, float], eps: tuple[float, float]
    ) -> None:
        super().__init__(groups, rate, ("mean",))
        self.betas, self.eps, self.clip_threshold = betas, eps, 1.0
        self._factors: list[dict[str, Parameter]] = [self._zeros(one) for one in self.parameters]

    @staticmethod
    def _zeros(parameter: Parameter) -> dict[str, Parameter]:
        if parameter.ndim < 2:
            shapes = {"square": parameter.shape}
        else:
            rows, columns = parameter.shape[:-1], (*parameter.shape[:-2], parameter.shape[-1])
            shapes = {"square_rows": rows, "square_columns": columns}
            shapes |= {"instability_rows": rows, "instability_columns": columns}
        return {
            name: Parameter(ops.zeros(shape, parameter.dtype), name=f"{name}.{parameter.name}")
            for name, shape in shapes.items()
        }

    def state_of(self, index: int) -> dict[str, Parameter]:
        """Of one parameter."""
        return {**super().state_of(index), **self._factors[index]}

    def update(self, index: int, parameter: Parameter, gradient: Tensor, rate: float, decay: float) -> None:
        """See ``Optimizer``."""
        (beta1, beta2, beta3), mean = self.betas, self.mean[index]
        update = gradient * self._inverse_root(
            index, "square", gradient * gradient + number(self.eps[0], mean), beta2
        )
        size = float(mint.sqrt(mint.mean(update * update)))
        update = update / number(max(1.0, size / self.clip_threshold), mean)
        mean_now = mean + (update - mean) * number(1.0 - beta1, mean)
        ops.assign(mean, mean_now)
        if parameter.ndim > 1:
            instability = mint.square(update - mean_now) + number(self.eps[1], mean)
            mean_now = mean_now * self._inverse_root(index, "instability", instability, beta3)
        kept = parameter * number(1.0 - rate * decay, mean)
        ops.assign(parameter, kept - mean_now * number(rate, mean))

    def _inverse_root(self, index: int, name: str, square: Tensor, beta: float) -> Tensor:
        """1 / sqrt of the running mean, for matrices of the outer product of its row and column means."""
        kept = self._factors[index]
        if square.ndim < 2:
            return mint.rsqrt(_moved(kept[name], square, beta))
        rows = _moved(kept[f"{name}_rows"], mint.mean(square, -1), beta)
        columns = _moved(kept[f"{name}_columns"], mint.mean(square, -2), beta)
        row = mint.rsqrt(rows / mint.mean(rows, -1, keepdim=True)).expand_dims(-1)
        return row * mint.rsqrt(columns).expand_dims(-2)


def _moved(kept: Parameter, new: Tensor, beta: float) -> Tensor:
    now = kept + (new - kept) * number(1.0 - beta, kept)
    ops.assign(kept, now)
    return now


def build_optimizer(config: OptimizerConfig, groups: Groups) -> Optimizer:
    """The optimizer of a configuration."""
    rate, kind = config.learning_rate, config.optimizer_type
    if kind == "SGD":
        return SGD(groups, rate, momentum=config.momentum, nesterov=config.nesterov)
    if kind == "Came":
        triple = config.betas if len(config.betas) == 3 else (0.9, 0.999, 0.9999)
        eps = config.eps if isinstance(config.eps, tuple) else (1e-30, 1e-16)
        return Came(groups, rate, betas=triple, eps=eps)
    first = config.eps[0] if isinstance(config.eps, tuple) else config.eps
    made = Adam if kind == "Adam" else AdamW
    return made(groups, rate, betas=(config.betas[0], config.betas[1]), eps=first)
