"""``training_config``: how long, how often, and what surrounds the step."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from trueup_gpt.config.base import Count, Positive, Section


class GradClipKwargs(Section):
    """``grad_clip_kwargs``: by the norm over all parameters, or value by value to +-clip_value."""

    grad_clip_type: Literal["ClipGlobalNorm", "GradClipByValue"] = "ClipGlobalNorm"
    clip_value: float = Field(default=1.0, gt=0)


class LossFuncKwargs(Section):
    """``loss_func_kwargs``: CrossEntropyLoss gathers logits that tensor parallelism has cut."""

    loss_func_type: Literal["VocabParallelCrossEntropy", "CrossEntropyLoss"] = "VocabParallelCrossEntropy"


class TrainingConfig(Section):
    """The run."""

    seed: Positive = 42
    """not given in the original: any"""
    output_dir: Path = Path("./output")
    device_target: Literal["CPU", "GPU", "Ascend"] | None = None
    """default: the one that is there; --device and TRUEUP_DEVICE go before it; not a key of the original"""
    training_iters: Count = 0
    epochs: Positive | None = None
    """in place of training_iters"""
    log_interval: Positive = 1
    """steps"""
    eval_interval: Positive | None = None
    eval_iters: Positive = 10
    """validation batches each time; not a key of the original"""
    save_interval: Positive | None = None
    eval_metric: Literal["loss", "perplexity"] | None = None
    """decides which checkpoint is the best; default: loss"""
    best_metric_comparison: Literal["less_equal", "greater_equal", "less", "greater"] | None = None
    """default: less"""
    grad_clip_kwargs: GradClipKwargs | None = None
    loss_scale: float | None = Field(default=None, gt=0)
    """static"""
    loss_scale_value: float | None = Field(default=None, gt=0)
    """dynamic: the first value"""
    loss_scale_factor: float = Field(default=2, gt=1)
    loss_scale_window: Positive = 1000
    """finite steps after which the dynamic scale grows"""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """over microbatches and data-parallel ranks, of losses and so of gradients"""
    calculate_per_token_loss: bool = False
    """each token of the step counts alike, in every microbatch"""
    loss_func_kwargs: LossFuncKwargs = LossFuncKwargs()
    use_distributed_optimizer: bool = False
    """zero_level z1"""
    check_for_nan_in_grad: bool = False
    """end with an error where a gradient is not finite and no loss scale is there to skip the step"""
    fp16: bool = False
    """compute_dtype float16"""
    bf16: bool = False
    """compute_dtype bfloat16"""
    resume_training: bool = False
    load_checkpoint: Path | None = None
    """a checkpoint, or a folder of them: the latest; default with resume_training: those of output_dir"""
    ckpt_format: Literal["ckpt", "safetensors", "torch_dist"] = "ckpt"
    """ckpt (MindSpore's files) and safetensors are written and read on both frameworks; torch_dist is torch's
    distributed checkpoint, for PyTorch alone"""
    keep_checkpoint_max: Positive = 5
    async_save: bool = True
    """train on while a checkpoint is written, from a copy in the CPU's memory; not a key of the original"""
    no_load_optim: bool = False
    no_load_rng: bool = False
    """true in the original: then a resumed run is another run"""
    new_dataset: bool = False
    """a resumed run starts at the beginning of its data"""
    prefix: str = "network"
    """of checkpoint folders"""
    tensorboard: bool = True
    """write TensorBoard files; not a key of the original"""

    @field_validator("load_checkpoint", mode="before")
    @classmethod
    def _none(cls, value: object) -> object:
        return None if value == "" else value
