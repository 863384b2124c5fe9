"""What goes wrong when training goes on from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bugzoo.entries import plant
from bugzoo.trainer import Trainer


def after_restoring(trainer: Trainer, change: Any) -> None:
    """Do something more once everything is loaded."""
    restore = trainer.restore

    def restore_and_change(path: Path) -> None:
        restore(path)
        change()

    trainer.restore = restore_and_change  # type: ignore[method-assign]


@plant("moments-lost")
def moments_lost(trainer: Trainer) -> None:
    """The optimizer's state is not loaded; its settings are."""
    restore = trainer.restore_optimizer

    def without_state(saved: dict[str, Any]) -> None:
        restore(saved)
        trainer.optimizer.state.clear()

    trainer.restore_optimizer = without_state  # type: ignore[method-assign]


@plant("step-count-lost")
def step_count_lost(trainer: Trainer) -> None:
    """Adam counts its steps from zero again, with the old moments."""

    def forget() -> None:
        for state in trainer.optimizer.state.values():
            state["step"].zero_()

    after_restoring(trainer, forget)


@plant("schedule-restarts")
def schedule_restarts(trainer: Trainer) -> None:
    """The warm-up begins again."""

    def again() -> None:
        for group in trainer.optimizer.param_groups:
            group["lr"] = trainer.base.learning_rate / trainer.base.warmup
        trainer.schedule.last_epoch = 0

    after_restoring(trainer, again)


@plant("data-replayed")
def data_replayed(trainer: Trainer) -> None:
    """The data begin at their first batch again."""

    def again() -> None:
        trainer.data_step = 0

    after_restoring(trainer, again)


@plant("random-state-lost")
def random_state_lost(trainer: Trainer) -> None:
    """Dropout begins as in the first step."""
    after_restoring(trainer, lambda: torch.manual_seed(100))


@plant("weight-not-loaded")
def weight_not_loaded(trainer: Trainer) -> None:
    """A renamed weight is passed over without a word."""

    def partly(saved: dict[str, Any]) -> None:
        renamed = {
            name.replace("layers.1.mlp.up.w", "layers.1.mlp.fc.w"): x for name, x in saved["model"].items()
        }
        trainer.model.load_state_dict(renamed, strict=False)

    trainer.restore_weights = partly  # type: ignore[method-assign]


@plant("checkpoint-bf16")
def checkpoint_bf16(trainer: Trainer) -> None:
    """The weights were saved in bfloat16."""

    def rounded(saved: dict[str, Any]) -> None:
        low = {name: x.to(torch.bfloat16).float() for name, x in saved["model"].items()}
        trainer.model.load_state_dict(low)

    trainer.restore_weights = rounded  # type: ignore[method-assign]


@plant("decay-groups-swapped")
def decay_groups_swapped(trainer: Trainer) -> None:
    """The loaded groups come in another order: what decays is swapped."""

    def swap() -> None:
        first, second = trainer.optimizer.param_groups
        first["weight_decay"], second["weight_decay"] = second["weight_decay"], first["weight_decay"]

    after_restoring(trainer, swap)
