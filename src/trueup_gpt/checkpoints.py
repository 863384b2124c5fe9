"""The checkpoints of a run, as both halves write and read them. What one is: ``trueup_gpt.saved``."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from trueup_gpt.parallel.mesh import AXES
from trueup_gpt.parts import PartWriter
from trueup_gpt.saved import (
    BEST,
    RUN_FILE,
    RunFacts,
    check_model,
    checkpoint_name,
    find_checkpoint,
    remove_old,
    run_facts,
)
from trueup_gpt.session import Session


class Checkpoints(ABC):
    """The checkpoints of a run."""

    def __init__(self, session: Session, report: Callable[[str], None] = lambda message: None) -> None:
        self._session, self._report = session, report
        self.folder = session.config.training.output_dir / "checkpoints"
        self.best: float | None = None
        """of the validations so far, kept over a resumption"""

    def save(self, *, best: bool = False) -> Path:
        """Begin one, under its step's number or as the best; a process that ends must ``wait`` for it."""
        config, mesh, step = self._session.config, self._session.mesh, self._session.step
        name = checkpoint_name(config.training.prefix, step.number, best=best)
        return self._begin(name, run_facts(config, mesh, step=step.number, scale=step.scale, best=self.best))

    def resume(self) -> Path | None:
        """Load what the configuration names: weights, optimizer, random streams, place in the data.

        Raises:
            ConfigError: there is none, it is of another model, or of another framework's own format.
        """
        session, training = self._session, self._session.config.training
        given = training.load_checkpoint
        if given is None and not training.resume_training:
            return None
        if given is not None and self._imported(given):
            return given
        path = find_checkpoint(given, self.folder, training.prefix)
        if path is None:
            return None
        facts: RunFacts = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
        check_model(path, facts, session.config)
        self._load(path, facts["step"], optimizer=training.resume_training and not training.no_load_optim)
        if training.resume_training:
            session.step.number = 0 if training.new_dataset else facts["step"]
            session.step.scale.load_state_dict(facts["loss_scale"])
            self.best = facts.get("best")
            if not training.no_load_rng and facts["num_processes"] == session.mesh.size(*AXES):
                self._load_random(path)
        return path

    def _imported(self, folder: Path) -> bool:
        """Whether the weights came from a folder that no trainer wrote."""
        return False

    @abstractmethod
    def wait(self) -> None:
        """Until the last one is whole."""

    @abstractmethod
    def _begin(self, name: str, facts: RunFacts) -> Path:
        """Begin to write this process's part."""

    @abstractmethod
    def _load(self, path: Path, number: int, *, optimizer: bool) -> None:
        """Weights, and the optimizer's state after ``number`` steps where that is wanted."""

    @abstractmethod
    def _load_random(self, path: Path) -> None:
        """The random streams, where they are there."""

    def _part_writer(self, barrier: Callable[[], None]) -> PartWriter:
        """Writes one file a process; ``barrier`` waits for all processes."""
        training, mesh = self._session.config.training, self._session.mesh
        return PartWriter(
            self.folder,
            suffix=training.ckpt_format,
            rank=mesh.rank,
            num_processes=mesh.size(*AXES),
            background=training.async_save,
            barrier=barrier,
            on_whole=self._whole,
        )

    def _whole(self, path: Path) -> None:
        training = self._session.config.training
        remove_old(self.folder, training.prefix, training.keep_checkpoint_max)
        self._report(f"saved {path}" + (", the best so far" if path.name.endswith(BEST) else ""))
