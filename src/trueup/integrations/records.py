"""Where records of a step go, and tensors as they are stored."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trueup.capture import session
from trueup.capture.observer import Observer, WatchedRun, observer_from_description
from trueup.capture.options import CaptureOptions
from trueup.store.token_layers import mark_step
from trueup.types.arrays import Array


def run_of(step: int | None) -> Path | None:
    """The run that records of a step belong to; None of a step that is not captured."""
    options = capture_options()
    return options.output if step is not None and step in options.steps else None


def capture_options() -> CaptureOptions:
    """What this process is captured with."""
    return CaptureOptions.from_json(json.loads(os.environ[session.FROM_OUTSIDE])["options"])


class LogProbs:
    """Both log-probs of a step's tokens, on their way to a token file and to the run's monitor."""

    def __init__(self) -> None:
        self._options: CaptureOptions | None = None
        self._observer: Observer | None = None

    def wanted(self, step: int | None) -> bool:
        """Whether anything is done with those of a step."""
        if self._options is None:
            self._options = capture_options()
            self._observer = observer_from_description(self._options.observer)
        return step is not None and (self._observer is not None or step in self._options.steps)

    def over(self, step: int) -> None:
        """The rollout of this step is over: engines that are captured see it."""
        if self._options is None:
            self.wanted(step)
        if self._options is not None and self._options.steps.ranges != ():
            mark_step(self._options.output, step)

    def keep(self, step: int, arrays: Mapping[str, Array], *, part: int = 0) -> None:
        """Of a captured step a file; of any step of a monitored run its measures.

        ``part``: of the processes that share out a step; the first one's are monitored.
        """
        if not self.wanted(step) or self._options is None:
            return
        if step in self._options.steps:
            name = f"step_{step:06d}" + (f"-{part:04d}" if part else "")
            save_tokens(self._options.output / "tokens" / f"{name}.npz", arrays, step)
        if self._observer is not None and not part:
            command = tuple(sys.orig_argv)
            run = WatchedRun(
                output=self._options.output, rank=0, world_size=1, first_step=step, command=command
            )
            self._observer.rollout(run, step, arrays)


def save_tokens(path: Path, arrays: Mapping[str, Array], step: int) -> None:
    """Write a token file under its name in one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writing = path.with_name(f".{path.name}.{os.getpid()}")
    with writing.open("wb") as file:
        np.savez(file, **dict(arrays), step=np.int64(step))  # type: ignore[arg-type]
    writing.rename(path)


def plain(tensor: object) -> Array:
    """A tensor as numpy, narrow floats widened."""
    host = tensor.detach().cpu()  # type: ignore[attr-defined]
    narrow = host.is_floating_point() and host.element_size() < np.dtype(np.float32).itemsize
    array: Array = (host.float() if narrow else host).numpy()
    return array


def dtype_of(tensor: object) -> str:
    """A tensor's dtype by numpy's name."""
    return str(tensor.dtype).removeprefix("torch.")  # type: ignore[attr-defined]
