"""Traces of the reference trainer in one layout: real processes, real collectives, a small model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trueup


def capture(plain: dict[str, Any], folder: str, steps: int, options: dict[str, Any]) -> None:
    """In this process: train, and leave a trace."""
    import torch

    from tests.trainer.layouts import portion, start
    from trueup_gpt.data import open_data

    config, mesh, _, step = start(plain)
    torch.manual_seed(1)
    data, _ = open_data(config)
    tracer = trueup.Tracer(folder, **options)
    tracer.start()
    for number in range(steps):
        step(data.read(portion(config, mesh, number)))
    tracer.close()


def traced(plain: dict[str, Any], size: int, folder: Path, *, steps: int = 1, **options: Any) -> Path:
    """The trace of ``size`` processes."""
    from tests.trainer.worlds import world

    world(size).run("tests.merging.runs:capture", plain, str(folder), steps, options)
    return folder
