"""Trains a small model on MindSpore in any layout; what it gives is compared as that of the PyTorch half."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.trainer.layouts import Run, merged
from trueup_gpt.config import config_from
from trueup_gpt.launching import STOP, _port, place_in_world
from trueup_gpt.mindspore.session import Session, prepare
from trueup_gpt.parallel.mesh import DATA, mesh_sizes

STEPS = 2
SECONDS = 400
ALL = os.environ.get("TRUEUP_TESTS") == "all"
"""every layout, not only those of two processes: starting MindSpore four times takes a minute"""
Parts = tuple[list[Any], list[Any], list[Any]]


def session(plain: dict[str, Any]) -> Session:
    """In this process; micro_batch_num is of all data-parallel ranks together."""
    sizes = mesh_sizes(config_from(plain), place_in_world(os.environ)[1])
    ranks = int(np.prod([sizes[axis] for axis in DATA]))
    dealt = {"micro_batch_num": plain["dataset_config"]["micro_batch_num"] // ranks}
    training = plain.get("training_config", {}) | {"training_iters": STEPS}
    changed = {"dataset_config": plain["dataset_config"] | dealt, "training_config": training}
    return prepare(config_from(plain | changed), device="cpu")


def train(plain: dict[str, Any], steps: int = STEPS) -> Parts:
    """In this process: results, and its parts of weights and gradients."""
    run = session(plain)
    results = [run.step(run.data.read(run.portion(number))) for number in range(steps)]
    parallel = run.parallel
    weights = [
        (fqn, parallel.places[fqn].shape, parallel.places[fqn].offset, parameter.asnumpy().copy())
        for fqn, parameter in parallel.parameters.items()
    ]
    gradients = []
    for piece in parallel.engine.pieces:
        assert piece.gradient is not None
        place = piece.place
        gradients.append(
            (place.fqn, place.shape, place.offset, place.size, piece.flat, piece.gradient.asnumpy())
        )
    return results, weights, gradients


def together(parts: list[Parts]) -> Run:
    """What all processes of a layout gave."""
    first = parts[0][0]
    for results, _, _ in parts[1:]:
        assert [one.loss for one in results] == [one.loss for one in first], "processes disagree on the loss"
        assert [one.grad_norm for one in results] == [one.grad_norm for one in first]
    return Run(
        [one.loss for one in first],
        [one.grad_norm for one in first],
        [one.local_norms for one in first],
        merged([(f, s, o, None, None, v) for _, weights, _ in parts for f, s, o, v in weights]),
        merged([one for _, _, gradients in parts for one in gradients]),
    )


@cache
def _alone(key: str, steps: int) -> Run:
    return together([train(json.loads(key), steps)])


def reference(plain: dict[str, Any], steps: int = STEPS) -> Run:
    """The same mathematics in one MindSpore process; trained once for each configuration."""
    alone = {name: section for name, section in plain.items() if name != "parallel_config"}
    return _alone(json.dumps(alone, sort_keys=True), steps)


def in_world(
    size: int,
    cases: dict[str, dict[str, Any]],
    folder: Path,
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
) -> dict[str, Run | str]:
    """Each case in ``size`` processes that msrun starts once for all of them; an error in place of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cases.json").write_text(json.dumps({"steps": steps, "cases": cases}))
    command = [
        str(Path(sys.executable).with_name("msrun")),
        f"--worker_num={size}",
        f"--local_worker_num={size}",
        f"--master_port={_port()}",
        f"--log_dir={folder / 'log'}",
        "--join=True",
        "--cluster_time_out=120",
        *("python", "-m", "tests.trainer.mindspore.worker", str(folder)),
    ]
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "GLOG_v": "3",
        STOP: str(folder / "stop"),
    }
    with (folder / "msrun.log").open("w") as log:
        subprocess.run(
            command, env=environment, stdout=log, stderr=log, timeout=seconds, check=False, cwd=Path.cwd()
        )
    found: dict[str, Run | str] = {}
    for name in cases:
        files = [folder / f"{name}.{rank}.pickle" for rank in range(size)]
        there = [pickle.loads(path.read_bytes()) for path in files if path.exists()]
        errors = [one for one in there if isinstance(one, str)]
        if errors or len(there) < size:
            found[name] = errors[0] if errors else f"{len(there)} of {size} processes ended: see {folder}"
        else:
            found[name] = together(there)
    return found
