"""Records of reinforcement learning beside the steps of a trace: ``rl/step_NNNNNN/``.

``batch.npz`` holds a step's batch, token by token, as the trainer has it before the update;
``batch-0001.npz`` what another process has of it. Each call of a loss has a file of its own:
``actor-0001-*.npz`` is one
microbatch of the second mini-batch. A file is what ``numpy.savez`` writes; ``settings`` and ``numbers`` in it
are JSON (docs/rl.md).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on

from trueup.errors import TraceError
from trueup.store.checked import as_written, checked
from trueup.store.layout import PROCESSES
from trueup.store.npz import NPZ_ERRORS
from trueup.types.arrays import Array

FOLDER = "rl"
BATCH = "batch.npz"
PADDING = -1
"""a token id that is none: of ``prompts`` before the prompt, of ``responses`` after the response"""
IDS = ("prompts", "responses")
_JSON = ("settings", "numbers", "dtypes")
Setting = str | float | int | bool | None


class _Content(TypedDict, total=False):
    """What a file holds as JSON."""

    settings: Mapping[str, Setting]
    numbers: Mapping[str, float]
    dtypes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RLRecord:
    """One file: a batch, or one call of a loss."""

    arrays: Mapping[str, Array]
    """(sequences, tokens), or (sequences,); names in docs/rl.md"""
    settings: Mapping[str, Setting]
    numbers: Mapping[str, float]
    """what a loss gave"""
    dtypes: Mapping[str, str]
    """of arrays that were widened to be stored"""
    role: str = "trainer"
    number: int = 0
    """of the mini-batch; 0 of a batch"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RLStep:
    """What was recorded of one step."""

    step: int
    batch: RLRecord | None
    losses: tuple[RLRecord, ...]
    """by role, mini-batch, and time"""


def write_batch(
    run: Path,
    step: int,
    arrays: Mapping[str, Array],
    settings: Mapping[str, Setting] | None = None,
    dtypes: Mapping[str, str] | None = None,
    *,
    part: int = 0,
) -> None:
    """Write a step's batch below a run, or a process's ``part`` of it, in one rename."""
    file = _folder(run, step) / (f"batch-{part:04d}.npz" if part else BATCH)
    _write(file, arrays, settings=settings or {}, numbers={}, dtypes=dtypes or {})


def write_loss(
    run: Path,
    step: int,
    arrays: Mapping[str, Array],
    settings: Mapping[str, Setting],
    numbers: Mapping[str, float],
    *,
    role: str = "actor",
    number: int = 0,
    dtypes: Mapping[str, str] | None = None,
) -> None:
    """Write what one call of a loss was given and gave."""
    file = _folder(run, step) / f"{role}-{number:04d}-{time.time_ns()}-{os.getpid()}.npz"
    _write(file, arrays, settings=settings, numbers=numbers, dtypes=dtypes or {})


def _folder(run: Path, step: int) -> Path:
    folder = run / FOLDER / f"step_{step:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(path: Path, arrays: Mapping[str, Array], **plain: Mapping[str, object]) -> None:
    writing = path.with_name(f".{path.name}.{os.getpid()}")
    texts = {name: np.array(json.dumps(dict(value))) for name, value in plain.items()}
    with writing.open("wb") as file:
        np.savez(file, **dict(arrays), **texts)  # type: ignore[arg-type]
    writing.rename(path)


def is_trace(run: Path) -> bool:
    """Whether a run has more than such records."""
    return (run / "manifest.json").is_file()


def has_rollouts(run: Path) -> bool:
    """Whether a run, or the job that it is of, has a recorded step."""
    return bool(_steps(run))


def _steps(run: Path) -> list[Path]:
    if run.parent.name == PROCESSES and not (run / FOLDER).is_dir():
        run = run.parents[1]
    return sorted((run / FOLDER).glob("step_*"))


def read_rollouts(run: Path) -> dict[int, RLStep]:
    """Every recorded step of a run, also of the job that a trace below ``processes/`` is of; empty where
    there is none.

    Raises:
        TraceError: a file cannot be read.
    """
    found: dict[int, RLStep] = {}
    for folder in _steps(run):
        files = sorted(folder.glob("[!.]*.npz"))
        parts = [_read(file) for file in files if file.name.startswith("batch")]
        losses = [_read(file) for file in files if not file.name.startswith("batch")]
        step = int(folder.name.partition("_")[2])
        with as_written(folder, remedy="Record the step again"):
            batch = _whole(parts) if parts else None
        found[step] = RLStep(step=step, batch=batch, losses=tuple(losses))
    return found


def _whole(parts: Sequence[RLRecord]) -> RLRecord:
    return replace(parts[0], arrays=stacked(parts), number=0, role="trainer")


def stacked(parts: Sequence[RLRecord]) -> dict[str, Array]:
    """The rows of several records under one another, padded to one width; arrays that all of them have."""
    names = [name for name in parts[0].arrays if all(name in one.arrays for one in parts)]
    return {name: _stacked([one.arrays[name] for one in parts], name) for name in names}


def _stacked(parts: Sequence[Array], name: str) -> Array:
    width = max((part.shape[1] for part in parts if part.ndim > 1), default=0)
    fill = PADDING if name in IDS else 0
    wide = [
        part if part.ndim < 2 else np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=fill)
        for part in parts
    ]
    return np.concatenate(wide)


def _read(path: Path) -> RLRecord:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files if name not in _JSON}
            texts = {name: json.loads(str(archive[name])) for name in _JSON if name in archive.files}
    except (*NPZ_ERRORS, AttributeError) as error:  # an array by itself is no archive
        raise TraceError(f"{path}: expected a record of an RL step (numpy archive): {error}") from error
    content = checked(texts, _Content, str(path), remedy="Record the step again")
    role, _, rest = path.stem.partition("-")
    number = rest.partition("-")[0]
    return RLRecord(
        arrays=arrays,
        settings=content.get("settings", {}),
        numbers=content.get("numbers", {}),
        dtypes=content.get("dtypes", {}),
        role=role if number else "trainer",
        number=int(number) if number.isdigit() else 0,
    )
