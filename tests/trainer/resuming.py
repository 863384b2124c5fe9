"""Runs of the small model with checkpoints, in every process of a world or in this one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tests.trainer.layouts import Run, merged, start, weights_of
from trueup_gpt.data import open_data
from trueup_gpt.logs import RunLog
from trueup_gpt.torch.session import Session, seed_streams
from trueup_gpt.train import train


def session_of(plain: dict[str, Any]) -> Session:
    """As ``prepare`` makes it, with the microbatches dealt out as in the tests of layouts."""
    config, mesh, parallel, step = start(plain)
    seed_streams(config, mesh)
    data, validation = open_data(config)
    steps = config.training.training_iters
    return Session(config, mesh, parallel, step, data, validation, steps)


def trained(plain: dict[str, Any]) -> tuple[list[float], list[Any]]:
    """Losses of the steps that ran, and this process's weights at the end."""
    session = session_of(plain)
    log = RunLog(session.config.training.output_dir, session.mesh.rank, speaks=False, tensorboard=False)
    try:
        outcome = train(session, log)
    finally:
        log.close()
    return outcome.losses, weights_of(session.parallel)


def run(plain: dict[str, Any], size: int) -> Run:
    """Losses and whole weights."""
    from tests.trainer.worlds import world

    parts = [trained(plain)] if size == 1 else world(size).run("tests.trainer.resuming:trained", plain)
    return Run(parts[0][0], [], [], merged([(f, s, o, None, None, v) for _, w in parts for f, s, o, v in w]))


def with_training(plain: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """The configuration with other keys of ``training_config``."""
    changed = copy.deepcopy(plain)
    changed["training_config"] |= {k: str(v) if isinstance(v, Path) else v for k, v in keys.items()}
    return changed
