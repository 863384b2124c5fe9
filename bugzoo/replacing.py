"""What the collection's programs on either half of the reference trainer share: their configuration, and the
way a fault replaces one part of the trainer's code.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Mapping
from typing import Any

from bugzoo.bases import Base
from trueup_gpt.config import Config, config_from, data_parallel_size

SECTIONS: dict[str, dict[str, Any]] = {
    "training": {"seed": 7, "grad_clip_kwargs": {"clip_value": 0.5}, "training_iters": 100},
    "model": {
        "vocab_size": 131,
        "seq_length": 16,
        "num_layers": 2,
        "hidden_size": 32,
        "ffn_hidden_size": 48,
        "num_attention_heads": 4,
        "group_query_attention": True,
        "num_query_groups": 2,
        "position_embedding_type": "rope",
        "normalization": "RMSNorm",
        "hidden_act": "swiglu",
        "bias_init": "normal",
        "untie_embeddings_and_output_weights": True,
        "init_method_std": 0.15,
    },
    "dataset": {"dataset_dir": typing.__file__, "batch_size": 2, "micro_batch_num": 2, "shuffle": True},
    "optimizer": {"learning_rate": 0.01, "weight_decay": 0.1},
}
"""of every base, changed by its own; ``micro_batch_num`` is of all processes together. The text is one of
Python's own sources, of ASCII alone: the vocabulary is uneven, and its second half holds letters."""


class Replacing:
    """A trainer whose code is changed until ``close``."""

    half: str
    """the package of the trainer's half"""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def part(self, name: str) -> Any:
        """A module of the half, such as ``parallel.stages``."""
        return importlib.import_module(f"{self.half}.{name}")

    def replace(self, owner: Any, name: str, value: Any) -> Any:
        """Put something else in the place of a part of the trainer's code; returns that."""
        if isinstance(owner, type):  # what both halves have is a base's
            owner = next(one for one in owner.__mro__ if name in vars(one))
        before = vars(owner)[name]
        self._replaced.append((owner, name, before))
        setattr(owner, name, value)
        return before

    def close(self) -> None:
        """The trainer's code as it was."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            setattr(owner, name, before)


def configuration(base: Base, *, seed: int = 0) -> Config:
    """Of this process: the base's microbatches are dealt out to those that read different ones."""
    own: Mapping[str, dict[str, Any]] = base.sections or {}
    plain = {f"{name}_config": {**section, **own.get(name, {})} for name, section in SECTIONS.items()}
    plain["training_config"]["seed"] += seed
    plain["parallel_config"] = {} if base.is_alone else dict(own.get("parallel", {}))
    plain["moe_config"] = dict(own.get("moe", {}))
    processes = data_parallel_size(config_from(plain), base.ranks)
    plain["dataset_config"]["micro_batch_num"] //= processes
    return config_from(plain)
