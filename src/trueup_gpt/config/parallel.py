"""``parallel_config``: how the model and the batch are cut over processes."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from trueup_gpt.config.base import Positive, Section

ZeroLevel = Literal["z1", "z2", "z3"]
Schedule = Literal["1f1b", "gpipe", "interleaved", "zbv"]


class ParallelConfig(Section):
    """Sizes of the mesh. Processes that they leave over are data parallel."""

    tensor_model_parallel_size: Positive = 1
    pipeline_model_parallel_size: Positive = 1
    virtual_pipeline_model_parallel_size: Positive | None = None
    """chunks of layers a pipeline rank holds"""
    context_parallel_size: Positive = 1
    expert_model_parallel_size: Positive = 1
    """part of the data-parallel ranks, as in Megatron"""
    sequence_parallel: bool = False
    """between attention and feed-forward each tensor-parallel rank holds a part of the sequence"""
    zero_level: ZeroLevel | None = None
    pipeline_schedule: Schedule | None = None
    """default: 1f1b, interleaved with virtual chunks; not a key of the original"""
    num_layer_list: list[int] | list[list[int]] | None = None
    """layers of each stage; with virtual chunks one list a chunk"""
    recompute: bool | None = None
    """keep only the inputs of layers and run them again in the backward pass"""
    deterministic_mode: bool = False
    """torch.use_deterministic_algorithms"""

    @field_validator("recompute", mode="before")
    @classmethod
    def _recompute(cls, value: object) -> object:
        return bool(value) if isinstance(value, list | dict) else value
