"""``optimizer_config``: the optimizer, its learning rate and its weight decay."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from trueup_gpt.config.base import Count, Positive, Section

OptimizerType = Literal["AdamW", "Adam", "SGD", "Came", "mint.AdamW", "SpeedAdamW"]
DecayStyle = Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"]
_AS_ADAMW = ("AdamWeightDecay", "mint.AdamW")


class ScheduleKwargs(Section):
    """``learning_rate_scheduler_kwargs``: MindSpore's WarmUpLR, then CosineDecayLR or PolynomialDecayLR.

    Steps count from 0, also those of the decay. Below warmup_steps the rate is learning_rate * step /
    warmup_steps; after it the decay's at that step.
    """

    warmup_steps: Count = 0
    decay_steps: Positive = 1
    use_cosine: bool = True
    end_learning_rate: float = Field(default=0.0, ge=0)
    power: float = Field(default=1.0, gt=0)


class WeightDecayKwargs(Section):
    """``weight_decay_kwargs``: where the weight decay starts and ends."""

    start_weight_decay: float | None = Field(default=None, ge=0)
    end_weight_decay: float | None = Field(default=None, ge=0)


class OptimizerConfig(Section):
    """The optimizer. mint.AdamW and AdamWeightDecay are AdamW here, SpeedAdamW torch's fused AdamW."""

    optimizer_type: OptimizerType = "AdamW"
    learning_rate: float = Field(default=1e-3, gt=0)
    betas: tuple[float, ...] = (0.9, 0.95)
    """AdamW, Adam: two; Came: three, 0.9, 0.999, 0.9999"""
    eps: float | tuple[float, float] = 1e-8
    """Came: two, 1e-30 and 1e-16"""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """of SGD"""
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0)
    end_weight_decay: float | None = Field(default=None, ge=0)
    """reached at the last step with weight_decay_incr_style linear or cosine"""
    weight_decay_kwargs: WeightDecayKwargs | None = None
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    learning_rate_scheduler_kwargs: ScheduleKwargs | None = None
    """where it is given, the lr_ keys have no effect"""
    lr_decay_style: DecayStyle = "constant"
    lr_decay_iters: Positive | None = None
    """default: training_iters"""
    lr_warmup_iters: Count = 0
    lr_warmup_fraction: float | None = Field(default=None, ge=0, le=1)
    """of lr_decay_iters, in place of lr_warmup_iters"""
    lr_warmup_init: float = Field(default=0.0, ge=0)
    min_lr: float = Field(default=0.0, ge=0)
    lr_wsd_decay_iters: Positive | None = None
    lr_wsd_decay_style: Literal["linear", "cosine", "exponential"] = "linear"
    fp32_master_weights: bool = True
    """the optimizer updates float32 copies of bfloat16 and float16 weights; not a key of the original"""
    clip_grad: float = Field(default=0.0, ge=0)
    """as grad_clip_kwargs with ClipGlobalNorm; 0: none"""

    @field_validator("eps")
    @classmethod
    def _not_negative(cls, value: float | tuple[float, float]) -> float | tuple[float, float]:
        if any(number < 0 for number in (value if isinstance(value, tuple) else (value,))):
            raise ValueError("expected a number of at least 0, such as 1e-8")
        return value

    @field_validator("betas")
    @classmethod
    def _two_or_three(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if len(value) not in (2, 3):
            raise ValueError("expected two numbers, such as [0.9, 0.95], or three with Came")
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError("expected numbers of at least 0 and below 1, such as [0.9, 0.95]")
        return value

    @field_validator("optimizer_type", mode="before")
    @classmethod
    def _alias(cls, value: object) -> object:
        return "AdamW" if value in _AS_ADAMW else value
