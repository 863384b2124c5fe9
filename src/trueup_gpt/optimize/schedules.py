"""Learning rate and weight decay by step; steps count from 0.

``learning_rate_scheduler_kwargs`` follows MindSpore (``nn.WarmUpLR``, then ``CosineDecayLR`` or
``PolynomialDecayLR``): the decay counts from step 0 and sets in after the warm-up. The ``lr_`` keys follow
Megatron-core 0.16's ``OptimizerParamScheduler``: the decay counts from the end of the warm-up.
"""

from __future__ import annotations

import math

from trueup_gpt.config import OptimizerConfig
from trueup_gpt.config.optimizer import ScheduleKwargs


class Schedules:
    """Both schedules of one run.

    Example:
        >>> config = OptimizerConfig(learning_rate=1.0, lr_decay_style="linear", lr_warmup_iters=2)
        >>> [Schedules(config, num_steps=6).learning_rate(step) for step in (0, 1, 2, 4, 6)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(self, config: OptimizerConfig, *, num_steps: int) -> None:
        self._config, self._num_steps = config, max(1, num_steps)

    def learning_rate(self, step: int) -> float:
        """The rate of a step."""
        kwargs = self._config.learning_rate_scheduler_kwargs
        return self._megatron(step) if kwargs is None else self._mindspore(step, kwargs)

    def weight_decay(self, step: int) -> float:
        """The decay of a step."""
        config = self._config
        limits = config.weight_decay_kwargs
        start = config.weight_decay if limits is None else limits.start_weight_decay
        end = config.end_weight_decay if limits is None else limits.end_weight_decay
        start = config.weight_decay if start is None else start
        if config.weight_decay_incr_style == "constant" or end is None:
            return start
        done = min(1.0, step / self._num_steps)
        if config.weight_decay_incr_style == "cosine":
            done = 0.5 * (1.0 - math.cos(math.pi * done))
        return start + done * (end - start)

    def _mindspore(self, step: int, kwargs: ScheduleKwargs) -> float:
        high, low = self._config.learning_rate, kwargs.end_learning_rate
        if step < kwargs.warmup_steps:
            return high * step / kwargs.warmup_steps
        done = min(step, kwargs.decay_steps) / kwargs.decay_steps
        if kwargs.use_cosine:
            return low + 0.5 * (high - low) * (1.0 + math.cos(math.pi * done))
        return (high - low) * (1.0 - done) ** kwargs.power + low

    def _megatron(self, step: int) -> float:
        config = self._config
        high, low = config.learning_rate, config.min_lr
        last = config.lr_decay_iters or self._num_steps
        warmup = config.lr_warmup_iters
        if config.lr_warmup_fraction is not None:
            warmup = int(config.lr_warmup_fraction * last)
        if warmup and step <= warmup:
            return config.lr_warmup_init + (high - config.lr_warmup_init) * step / warmup
        if config.lr_decay_style == "constant":
            return high
        if step > last:
            return low
        if config.lr_decay_style == "inverse-square-root":
            return max(low, high * math.sqrt(max(warmup, 1)) / math.sqrt(max(step, 1)))
        done = (step - warmup) / max(1, last - warmup)
        if config.lr_decay_style == "linear":
            return low + (1.0 - done) * (high - low)
        if config.lr_decay_style == "cosine":
            return low + 0.5 * (math.cos(math.pi * done) + 1.0) * (high - low)
        return self._annealed(step, last, high, low)

    def _annealed(self, step: int, last: int, high: float, low: float) -> float:
        """Warm-up, stable, decay: ``high`` until the last ``lr_wsd_decay_iters`` steps."""
        annealing = self._config.lr_wsd_decay_iters or max(1, last // 10)
        done = (step - (last - annealing)) / annealing
        if done <= 0:
            return high
        style = self._config.lr_wsd_decay_style
        if style == "linear":
            share = 1.0 - done
        elif style == "cosine":
            share = 0.5 * (math.cos(math.pi * done) + 1.0)
        else:
            share = 2.0 * 0.5**done - 1.0
        return low + share * (high - low)
