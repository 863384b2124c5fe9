"""The whole configuration, one field a section."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from trueup_gpt.config.base import Section
from trueup_gpt.config.dataset import DatasetConfig
from trueup_gpt.config.model import ModelConfig, MoEConfig
from trueup_gpt.config.optimizer import OptimizerConfig
from trueup_gpt.config.parallel import ParallelConfig
from trueup_gpt.config.training import GradClipKwargs, TrainingConfig


class Config(Section):
    """A training run. In the file every section's name ends in ``_config``."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True, validate_by_alias=True)

    training: TrainingConfig = Field(default=TrainingConfig(), alias="training_config")
    parallel: ParallelConfig = Field(default=ParallelConfig(), alias="parallel_config")
    model: ModelConfig = Field(alias="model_config")
    moe: MoEConfig = Field(default=MoEConfig(), alias="moe_config")
    dataset: DatasetConfig = Field(default=DatasetConfig(), alias="dataset_config")
    optimizer: OptimizerConfig = Field(default=OptimizerConfig(), alias="optimizer_config")

    @property
    def clip(self) -> GradClipKwargs | None:
        """How gradients are clipped; None: not at all."""
        if self.training.grad_clip_kwargs is None and self.optimizer.clip_grad:
            return GradClipKwargs(clip_value=self.optimizer.clip_grad)
        return self.training.grad_clip_kwargs

    @property
    def tokens_dim(self) -> int:
        """The dim of tokens in the residual stream: 1 of (B, T, H), 0 of (T, B, H)."""
        return 0 if self.dataset.data_layout == "SBH" else 1

    def to_dict(self) -> dict[str, object]:
        """The sections as the file has them: plain values, to be written as YAML or JSON."""
        return self.model_dump(mode="json", by_alias=True)
