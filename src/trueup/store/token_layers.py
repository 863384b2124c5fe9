"""Layer outputs token by token, of an inference engine and of its trainer: ``layers/`` of a run.

``rollout-*.npz``, ``training-*.npz`` and ``noise-*.npz`` hold ``ids``, ``positions``, ``times`` (when they
were written down) and a row a token of every layer; ``step`` where the process knows it. ``steps`` says when
the rollout of each step was over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from trueup.errors import TraceError
from trueup.store.npz import NPZ_ERRORS
from trueup.types.arrays import Array

FOLDER = "layers"
SIDES = ("rollout", "training", "noise")
BESIDE = ("ids", "positions", "times", "step")
"""arrays of a file that are no layers"""


def mark_step(run: Path, step: int) -> None:
    """The rollout of a step is over: engines that see it count what follows to the next one."""
    folder = run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "steps").open("a", encoding="utf-8") as file:
        file.write(f"{step} {time.time():.6f}\n")


def marks(run: Path) -> Iterator[tuple[int, float]]:
    """Steps whose rollout is over, and when; in order."""
    file = run / FOLDER / "steps"
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        step, _, when = line.partition(" ")
        if when:
            yield int(step), float(when)


def layer_files(run: Path, side: str) -> Iterator[Mapping[str, Array]]:
    """What processes have written of one side.

    Raises:
        TraceError: a file cannot be read.
    """
    for path in sorted((run / FOLDER).glob(f"{side}-*.npz")):
        try:
            with np.load(path, allow_pickle=False) as archive:
                yield {name: archive[name] for name in archive.files}
        except NPZ_ERRORS as error:
            raise TraceError(f"{path} cannot be read: {error}") from error
