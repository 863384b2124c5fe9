"""Checkpoints: whole tensors to a reader of any layout. See ``trueup_gpt.saved`` and ``trueup_gpt.parts``.

With ``ckpt_format: torch_dist`` the tensors, by the same names, are in torch's distributed checkpoint.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from trueup.errors import ConfigError
from trueup.types.arrays import Array
from trueup_gpt import checkpoints
from trueup_gpt.parts import PartReader, is_in_parts
from trueup_gpt.saved import RunFacts
from trueup_gpt.torch.boxes import Boxes, LoadPlanner, boxes_of
from trueup_gpt.torch.hugging_face import HuggingFaceWeights, check_exchangeable, is_hugging_face
from trueup_gpt.torch.parallel.pieces import Piece
from trueup_gpt.torch.parallel.streams import random_state, set_random_state
from trueup_gpt.torch.saving import Writer, barrier
from trueup_gpt.torch.session import Session


class Checkpoints(checkpoints.Checkpoints):
    """The checkpoints of a run."""

    _session: Session

    def __init__(self, session: Session, report: Callable[[str], None] = lambda message: None) -> None:
        super().__init__(session, report)
        training, first = session.config.training, session.mesh.rank == 0
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # one process is fine
        self._writer = (
            Writer(self.folder, first=first, background=training.async_save, on_whole=self._whole)
            if training.ckpt_format == "torch_dist"
            else self._part_writer(barrier)
        )

    def _begin(self, name: str, facts: RunFacts) -> Path:
        state = self._state()
        if isinstance(self._writer, Writer):
            return self._writer.begin(state, facts, name)
        held = {name: _arrays(value) for name, value in state.items() if self._is_first(name)}
        return self._writer.begin(held, facts, name)

    def _is_first(self, name: str) -> bool:
        """Whether this is the first of the processes that hold the same; FSDP2's parts differ."""
        session = self._session
        kind, _, rest = name.partition(".")
        if kind == "random" or session.config.parallel.zero_level in ("z2", "z3"):
            return True
        if kind == "model":
            copies = session.parallel.places[rest].copies(session.mesh)
        else:
            pieces = session.parallel.engine.pieces
            copies = next(one.copies for one in pieces if f"{rest}.".startswith(f"{one.fqn}."))
        return not any(session.mesh.coordinate(axis) for axis in copies)

    def wait(self) -> None:
        """Until the last one is whole."""
        self._writer.wait()

    def _load(self, path: Path, number: int, *, optimizer: bool) -> None:
        state = self._state(optimizer=optimizer, random=False)
        masters = [name for name in state if name.startswith("master.")]
        kept = bool(masters) and masters[0] in _names(path)
        _read({name: value for name, value in state.items() if kept or name not in masters}, path)
        if not kept:
            self._session.parallel.adopt()

    def _imported(self, folder: Path) -> bool:
        """Weights alone, from a Hugging Face folder; each process takes its part."""
        if not is_hugging_face(folder):
            return False
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
        return True

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

    def _load_random(self, path: Path) -> None:
        mesh = self._session.mesh
        state = {f"random.{mesh.rank}": random_state(mesh.device)}
        if is_in_parts(path) and f"random.{mesh.rank}" not in _names(path):
            self._report("the checkpoint holds no random streams of PyTorch: dropout draws from the seed")
            return
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


def _arrays(value: object) -> list[tuple[tuple[int, ...], Array]]:
    """Offsets and elements; bfloat16 is written as float32, which holds it exactly."""
    if isinstance(value, Boxes):
        return [(tuple(box.offset), _array(box.values)) for box in value.boxes]
    array = _array(value) if isinstance(value, Tensor) else np.asarray(value)
    return [((0,) * array.ndim, array)]


def _array(tensor: Tensor) -> Array:
    held = tensor.detach().cpu()
    return (held.float() if held.dtype is torch.bfloat16 else held).numpy()


def _names(folder: Path) -> Container[str]:
    """What a checkpoint of either format holds."""
    if is_in_parts(folder):
        return PartReader(folder).names
    return FileSystemReader(folder).read_metadata().state_dict_metadata


def _read(state: Mapping[str, object], folder: Path) -> None:
    """Into the tensors of ``state``."""
    if is_in_parts(folder):
        reader = PartReader(folder)
        with torch.no_grad():
            for name, value in state.items():
                if isinstance(value, Boxes):
                    for box in value.boxes:
                        read = reader.read(name, tuple(box.offset), tuple(box.values.shape))
                        box.values.copy_(torch.from_numpy(read))
                elif isinstance(value, Tensor):
                    value.copy_(torch.from_numpy(reader.read(name, (0,) * value.dim(), tuple(value.shape))))
        return
    load(
        cast("dict[str, object]", state),
        checkpoint_id=folder,
        no_dist=not dist.is_initialized(),
        planner=LoadPlanner(),
    )
