"""Checkpoints by torch's distributed checkpoint: whole tensors to a reader, written by any layout.

    output_dir/checkpoints/network_00000010/
        run.json         step, scale of the loss, configuration, layout table
        *.distcp         ``model.FQN``, ``optimizer.FQN.STATE``, ``master.FQN``, ``random.RANK``

A folder gets its name when it is whole, so that none is ever half there. Each process writes the boxes it
holds, and reads those it needs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from trueup.errors import ConfigError
from trueup_gpt.saved import RUN_FILE, RunFacts, check_model, find_checkpoint, numbered, run_facts
from trueup_gpt.torch.boxes import Boxes, LoadPlanner, boxes_of
from trueup_gpt.torch.hugging_face import HuggingFaceWeights, check_exchangeable, is_hugging_face
from trueup_gpt.torch.parallel.pieces import Piece
from trueup_gpt.torch.parallel.streams import random_state, set_random_state
from trueup_gpt.torch.saving import Writer
from trueup_gpt.torch.session import Session

_BEST = "best"


class Checkpoints:
    """The checkpoints of a run."""

    def __init__(self, session: Session, said: Callable[[str], None] = lambda message: None) -> None:
        self._session, self._said = session, said
        training = session.config.training
        self.folder = training.output_dir / "checkpoints"
        self.best: float | None = None
        """of the validations so far, kept over a resumption"""
        self._writer = Writer(
            self.folder,
            first=session.mesh.rank == 0,
            background=training.async_save,
            on_whole=self._whole,
        )

    def save(self, *, best: bool = False) -> Path:
        """Begin one, under its step's number or as the best; a process that ends must ``wait`` for it."""
        name = _BEST if best else f"{self._session.step.number:08d}"
        prefix = self._session.config.training.prefix
        return self._writer.begin(self._state(), self._facts(), f"{prefix}_{name}")

    def wait(self) -> None:
        """Until the last one is whole."""
        self._writer.wait()

    def _whole(self, path: Path) -> None:
        training = self._session.config.training
        for old in numbered(self.folder, training.prefix)[: -training.keep_checkpoint_max]:
            shutil.rmtree(old)
        self._said(f"saved {path}" + (", the best so far" if path.name.endswith(_BEST) else ""))

    def resume(self) -> Path | None:
        """Load what the configuration names: weights, optimizer, random streams, place in the data.

        Raises:
            ConfigError: there is none, or it is of another model.
        """
        training = self._session.config.training
        if training.load_checkpoint is None and not training.resume_training:
            return None
        given = training.load_checkpoint
        if given is not None and is_hugging_face(given):
            self._import(given)
            return given
        path = find_checkpoint(given, self.folder, training.prefix)
        if path is None:
            return None
        facts: RunFacts = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
        check_model(path, facts, self._session.config)
        whole = training.resume_training and not training.no_load_optim
        state = self._state(optimizer=whole, random=False)
        there = FileSystemReader(path).read_metadata().state_dict_metadata
        masters = [name for name in state if name.startswith("master.")]
        if not masters or masters[0] not in there:
            state = {name: value for name, value in state.items() if name not in masters}
            _read(state, path)
            self._session.parallel.adopt()
        else:
            _read(state, path)
        if training.resume_training:
            self._session.step.number = 0 if training.new_dataset else facts["step"]
            self._session.step.scale.load_state_dict(facts["loss_scale"])
            self.best = facts.get("best")
            if not training.no_load_rng:
                self._load_random(path, facts["num_processes"])
        return path

    def _import(self, folder: Path) -> None:
        """Weights alone, from a Hugging Face folder; each process takes its part."""
        session = self._session
        check_exchangeable(session.config)
        weights = HuggingFaceWeights(folder)
        for fqn, parameter in session.parallel.parameters.items():
            place = session.parallel.places[fqn]
            whole = weights.read(fqn, session.config.moe.num_experts)
            if whole.shape != place.shape:
                raise ConfigError(f"{folder}: {fqn} is {tuple(whole.shape)}, here {tuple(place.shape)}")
            for box in boxes_of(place, parameter.data)[1]:
                for dim, (offset, size) in enumerate(zip(box.offset, box.values.shape, strict=True)):
                    whole = whole.narrow(dim, offset, size)
                box.values.copy_(whole)
        session.parallel.adopt()

    def _facts(self) -> RunFacts:
        session = self._session
        return run_facts(
            session.config,
            session.mesh,
            step=session.step.number,
            scale=session.step.scale,
            best=self.best,
        )

    def _state(self, *, optimizer: bool = True, random: bool = True) -> dict[str, object]:
        """Names to tensors: boxes of this process's parts. What is loaded is written into them."""
        parallel = self._session.parallel
        state: dict[str, object] = {}
        for fqn, parameter in parallel.parameters.items():
            state[f"model.{fqn}"] = Boxes.of(parameter.data, boxes_of(parallel.places[fqn], parameter.data))
        if optimizer:
            for piece in parallel.engine.pieces:
                for name, tensor in self._optimizer_state(piece):
                    state[f"optimizer.{piece.fqn}.{name}"] = tensor
                if piece.computed is not None:
                    values = piece.parameter.data
                    state[f"master.{piece.fqn}"] = Boxes.of(values, boxes_of(piece.place, values, piece.flat))
        if random:
            state[f"random.{self._session.mesh.rank}"] = random_state(self._session.mesh.device)
        return state

    def _optimizer_state(self, piece: Piece) -> Iterator[tuple[str, object]]:
        optimizer = self._session.step.optimizer
        if piece.parameter not in optimizer.state:
            _make_state(optimizer, self._session.parallel.engine.pieces)
        for name, value in optimizer.state[piece.parameter].items():
            alike = isinstance(value, Tensor) and value.shape == piece.parameter.shape
            yield name, Boxes.of(value, boxes_of(piece.place, value, piece.flat)) if alike else value

    def _load_random(self, path: Path, num_processes: int) -> None:
        mesh = self._session.mesh
        if num_processes != mesh.size(*mesh.sizes):
            return
        state = {f"random.{mesh.rank}": random_state(mesh.device)}
        _read(state, path)
        set_random_state(state[f"random.{mesh.rank}"], mesh.device)


def _make_state(optimizer: torch.optim.Optimizer, pieces: list[Piece]) -> None:
    """The state an optimizer has after a step that changes nothing: there is room to load into."""
    gradients = [piece.parameter.grad for piece in pieces]
    kept = [group["lr"] for group in optimizer.param_groups]
    for piece in pieces:
        piece.parameter.grad = torch.zeros_like(piece.parameter)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for piece, gradient in zip(pieces, gradients, strict=True):
        piece.parameter.grad = gradient
    for group, rate in zip(optimizer.param_groups, kept, strict=True):
        group["lr"] = rate


def _read(state: Mapping[str, object], folder: Path) -> None:
    load(
        cast("dict[str, object]", state),
        checkpoint_id=folder,
        no_dist=not dist.is_initialized(),
        planner=LoadPlanner(),
    )
