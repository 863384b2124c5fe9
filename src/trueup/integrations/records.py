"""Where records of a step go, and tensors as they are stored."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trueup.capture import session
from trueup.capture.options import CaptureOptions
from trueup.types.arrays import Array


def run_of(step: int | None) -> Path | None:
    """The run that records of a step belong to; None of a step that is not captured."""
    options = CaptureOptions.from_json(json.loads(os.environ[session.FROM_OUTSIDE])["options"])
    return options.output if step is not None and step in options.steps else None


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
