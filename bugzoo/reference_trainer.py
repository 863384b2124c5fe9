"""A base program that is the reference trainer in some parallel layout, or in one process.

A fault replaces one part of the trainer's code before the first step; nothing else.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from torch import nn

from bugzoo.bases import Base
from bugzoo.models.ranks import rank_and_world
from trueup_gpt import prepare
from trueup_gpt.config import Config, config_from, data_parallel_size
from trueup_gpt.torch import session, step
from trueup_gpt.torch.parallel.gradients import Norms
from trueup_gpt.torch.parallel.stages import Stage, model_on_meta

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


class ReferenceTrainer:
    """The trainer in this process, as ``bugzoo.trainer.Trainer`` is for the family's programs."""

    def __init__(self, base: Base, *, seed: int = 0) -> None:
        self.config = configuration(base, seed=seed)
        self.rank, self.world = rank_and_world()
        self.data_step = 0
        """number of the next step's batches"""
        self._session: session.Session | None = None
        self._norms: Norms | None = None
        self._replaced: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> Any:
        """Put something else in the place of a part of the trainer's code until ``close``; returns that."""
        before = vars(owner)[name]
        self._replaced.append((owner, name, before))
        setattr(owner, name, value)
        return before

    def close(self) -> None:
        """The trainer's code as it was."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            setattr(owner, name, before)

    @property
    def session(self) -> session.Session:
        """The run, started when it is first asked for: a fault is planted before."""
        if self._session is None:
            self._session = prepare(self.config, device="cpu")
            self._session.step._update = self._note  # type: ignore[method-assign]
        return self._session

    @property
    def mesh(self) -> Any:
        """Of the run."""
        return self.session.mesh

    @property
    def model(self) -> nn.Module:
        """The stages of this process."""
        return nn.ModuleList(self.session.parallel.stages)

    @property
    def optimizer(self) -> Any:
        """That of this process."""
        return self.session.step.optimizer

    def named_weights(self) -> list[tuple[str, nn.Parameter]]:
        """What the optimizer of this process updates."""
        return [(piece.fqn, piece.parameter) for piece in self.session.parallel.engine.pieces]

    def step(self) -> float:
        """One step; the loss."""
        batches = self.session.data.read(self.session.portion(self.data_step))
        self.data_step += 1
        return self.session.step(batches).loss

    def _note(self, norms: Norms) -> None:
        self._norms = norms
        self.update()

    def update(self) -> None:
        """Clip, and one optimizer step."""
        assert self._norms is not None
        step.TrainStep._update(self.session.step, self._norms)


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


def stage_on_meta(base: Base) -> nn.Module:
    """The whole model without values, with the names its modules have in a run."""
    return Stage(model_on_meta(configuration(base)), 0)
