"""Checkpoints: whole tensors to a reader of any layout. See ``trueup_gpt.saved`` and ``trueup_gpt.parts``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, ops

from trueup.errors import ConfigError
from trueup.types.arrays import Array
from trueup_gpt.mindspore.parallel.collectives import all_reduce
from trueup_gpt.mindspore.parallel.pieces import Piece
from trueup_gpt.mindspore.session import Session
from trueup_gpt.parallel.mesh import AXES
from trueup_gpt.parts import PartReader, PartWriter, boxes_of_part, is_in_parts
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


class Checkpoints:
    """The checkpoints of a run."""

    def __init__(self, session: Session, said: Callable[[str], None] = lambda message: None) -> None:
        self._session, self._said = session, said
        training, mesh = session.config.training, session.mesh
        self.folder = training.output_dir / "checkpoints"
        self.best: float | None = None
        """of the validations so far, kept over a resumption"""
        self._writer = PartWriter(
            self.folder,
            suffix=training.ckpt_format,
            rank=mesh.rank,
            num_processes=mesh.size(*AXES),
            background=training.async_save,
            barrier=self._barrier,
            on_whole=self._whole,
        )

    def save(self, *, best: bool = False) -> Path:
        """Begin one, under its step's number or as the best; a process that ends must ``wait`` for it."""
        session = self._session
        name = checkpoint_name(session.config.training.prefix, session.step.number, best=best)
        parts: dict[str, list[tuple[tuple[int, ...], Array]]] = {}
        for key, piece, parameter in self._state():
            if not any(session.mesh.coordinate(axis) for axis in piece.copies):
                values = _array(parameter)
                alike = values.shape == piece.parameter.shape
                whole = [((0,) * values.ndim, values)]
                parts[key] = list(boxes_of_part(piece.place, values, piece.flat)) if alike else whole
        random = mindspore.get_rng_state().asnumpy()
        parts[self._random] = [((0,) * random.ndim, random)]
        return self._writer.begin(parts, self._facts(), name)

    def wait(self) -> None:
        """Until the last one is whole."""
        self._writer.wait()

    def _whole(self, path: Path) -> None:
        training = self._session.config.training
        remove_old(self.folder, training.prefix, training.keep_checkpoint_max)
        self._said(f"saved {path}" + (", the best so far" if path.name.endswith(BEST) else ""))

    def resume(self) -> Path | None:
        """Load what the configuration names: weights, optimizer, random streams, place in the data.

        Raises:
            ConfigError: there is none, it is of another model, or PyTorch alone can read it.
        """
        session, training = self._session, self._session.config.training
        if training.load_checkpoint is None and not training.resume_training:
            return None
        path = find_checkpoint(training.load_checkpoint, self.folder, training.prefix)
        if path is None:
            return None
        if not is_in_parts(path):
            raise ConfigError(
                f"{path} is a distributed checkpoint of PyTorch: write it with training_config.ckpt_format "
                "ckpt or safetensors, or resume with --framework pytorch"
            )
        facts: RunFacts = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
        check_model(path, facts, session.config)
        reader = PartReader(path)
        optimizer = training.resume_training and not training.no_load_optim
        self._load(reader, optimizer=optimizer)
        if optimizer:
            session.step.optimizer.loaded(facts["step"])
        if training.resume_training:
            session.step.number = 0 if training.new_dataset else facts["step"]
            session.step.scale.load_state_dict(facts["loss_scale"])
            self.best = facts.get("best")
            if not training.no_load_rng and facts["num_processes"] == session.mesh.size(*AXES):
                self._load_random(reader)
        return path

    def _load(self, reader: PartReader, *, optimizer: bool) -> None:
        session = self._session
        for fqn, parameter in session.parallel.parameters.items():
            place = session.parallel.places[fqn]
            _assign(parameter, reader.read(f"model.{fqn}", place.offset, place.size))
        session.parallel.engine.adopt()
        for name, piece, parameter in self._state():
            kind, _, _ = name.partition(".")
            if (
                kind == "model"
                or (kind == "optimizer" and not optimizer)
                or (kind == "master" and name not in reader.names)
            ):
                continue
            if parameter.shape != piece.parameter.shape:
                _assign(parameter, reader.read(name, (0,) * parameter.ndim, parameter.shape))
                continue
            where = boxes_of_part(piece.place, np.empty(parameter.shape, bool), piece.flat)
            boxes = [reader.read(name, offset, box.shape) for offset, box in where]
            whole = boxes[0] if piece.flat is None else np.concatenate([box.ravel() for box in boxes])
            _assign(parameter, whole)

    def _state(self) -> Iterator[tuple[str, Piece, Parameter]]:
        """Every tensor with its name and the piece whose elements it has, or belongs to."""
        session = self._session
        optimizer = session.step.optimizer
        computed = session.parallel.parameters
        for piece in session.parallel.engine.pieces:
            if (
                piece.parameter is not computed[piece.fqn]
                and piece.parameter.dtype != computed[piece.fqn].dtype
            ):
                yield f"master.{piece.fqn}", piece, piece.parameter
            index = session.step.index_of(piece)
            for name, parameter in optimizer.state_of(index).items():
                yield f"optimizer.{piece.fqn}.{name}", piece, parameter
        for fqn, parameter in computed.items():
            yield f"model.{fqn}", session.parallel.whole_piece(fqn), parameter

    def _facts(self) -> RunFacts:
        session = self._session
        scale, number = session.step.scale, session.step.number
        return run_facts(session.config, session.mesh, step=number, scale=scale, best=self.best)

    @property
    def _random(self) -> str:
        """The name of this process's random stream: MindSpore alone can go on with it."""
        return f"random_mindspore.{self._session.mesh.rank}"

    def _load_random(self, reader: PartReader) -> None:
        shape = mindspore.get_rng_state().shape
        if self._random in reader.names:
            mindspore.set_rng_state(Tensor(reader.read(self._random, (0,) * len(shape), shape)))

    def _barrier(self) -> None:
        mesh = self._session.mesh
        if mesh.size(*AXES) > 1:
            all_reduce(Tensor([0], mindspore.int32), mesh.group(*AXES)).asnumpy()


def _array(parameter: Parameter) -> Array:
    """Its values; bfloat16 is written as float32, which holds it exactly."""
    half = parameter.dtype == mindspore.bfloat16
    return (parameter.astype(mindspore.float32) if half else parameter).asnumpy()


def _assign(parameter: Parameter, values: Array) -> None:
    ops.assign(parameter, Tensor(np.require(values, requirements="C")).astype(parameter.dtype))
