"""``dataset_config``: what is read, and in what portions."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import field_validator

from trueup_gpt.config.base import Count, Positive, Section


class DatasetConfig(Section):
    """The data. A step reads batch_size * micro_batch_num rows for each data-parallel rank."""

    dataset_dir: Path = Path("./dataset")
    """a text file or folder of text (bytes are the vocabulary), ``.npy`` of ids, Megatron's ``.bin`` and
    ``.idx``, a trace or folder of recorded batches; or ``pydoc:topics``, English that comes with Python"""
    validation_dir: Path | None = None
    """the like, for validation; default: the last part of dataset_dir. Not a key of the original"""
    validation_share: float = 0.0
    """rows at the end of dataset_dir that are kept from training. Not a key of the original"""
    batch_size: Positive = 1
    """rows of one microbatch"""
    micro_batch_num: Positive = 1
    """microbatches of a step"""
    shuffle: bool = False
    """rows in another order each epoch, by the seed"""
    train_samples: Count = 0
    """rows to train on, in place of training_iters; 0: training_iters counts"""
    eos_token_id: Count = 0
    eod_mask_loss: bool = False
    """eos_token_id as input does not count in the loss. Not a key of the original"""
    data_layout: Literal["BSH", "SBH"] = "BSH"
    """how the residual stream lies: rows, tokens, hidden; or tokens first, as Megatron has it"""

    @field_validator("dataset_dir", "validation_dir")
    @classmethod
    def _home(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser()
