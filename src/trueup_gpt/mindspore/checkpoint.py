"""Checkpoints: whole tensors to a reader of any layout. See ``trueup_gpt.saved`` and ``trueup_gpt.parts``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, ops

from trueup.errors import ConfigError
from trueup.types.arrays import Array
from trueup_gpt import checkpoints
from trueup_gpt.mindspore.parallel.collectives import all_reduce
from trueup_gpt.mindspore.parallel.pieces import Piece
from trueup_gpt.mindspore.session import Session
from trueup_gpt.parallel.mesh import AXES
from trueup_gpt.parts import PartReader, boxes_of_part, is_in_parts
from trueup_gpt.saved import RunFacts


class Checkpoints(checkpoints.Checkpoints):
    """The checkpoints of a run."""

    _session: Session

    def __init__(self, session: Session, report: Callable[[str], None] = lambda message: None) -> None:
        super().__init__(session, report)
        self._writer = self._part_writer(self._barrier)

    def _begin(self, name: str, facts: RunFacts) -> Path:
        session = self._session
        parts: dict[str, list[tuple[tuple[int, ...], Array]]] = {}
        for key, piece, parameter in self._state():
            if not any(session.mesh.coordinate(axis) for axis in piece.copies):
                values = _array(parameter)
                alike = values.shape == piece.parameter.shape
                whole = [((0,) * values.ndim, values)]
                parts[key] = list(boxes_of_part(piece.place, values, piece.flat)) if alike else whole
        random = mindspore.get_rng_state().asnumpy()
        parts[self._random] = [((0,) * random.ndim, random)]
        return self._writer.begin(parts, facts, name)

    def wait(self) -> None:
        """Until the last one is whole."""
        self._writer.wait()

    def _load(self, path: Path, number: int, *, optimizer: bool) -> None:
        if not is_in_parts(path):
            raise ConfigError(
                f"{path} is a distributed checkpoint of PyTorch: write it with training_config.ckpt_format "
                "ckpt or safetensors, or resume with --framework pytorch"
            )
        reader = PartReader(path)
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
        if optimizer:
            session.step.optimizer.loaded(number)

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

    @property
    def _random(self) -> str:
        """The name of this process's random stream: MindSpore alone can go on with it."""
        return f"random_mindspore.{self._session.mesh.rank}"

    def _load_random(self, path: Path) -> None:
        reader = PartReader(path)
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
