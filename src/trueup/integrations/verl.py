"""verl: phases, roles and global steps of its engines, and the two log-probs of every sampled token.

verl loads this module in each of its processes (entry point group ``verl.plugins``); under ``trueup capture``
it is also loaded where trueup is not installed. Steps of the trace are verl's global steps: its mini-batches
are updates of one step, and the forwards that compute log-probs and values are part of it.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np

from trueup.capture import session
from trueup.capture.launch.child import framework_is_ready
from trueup.capture.options import CaptureOptions
from trueup.capture.shield import shielded
from trueup.integrations import Watcher
from trueup.types.arrays import Array

TOKENS = ("rollout_log_probs", "old_log_probs", "response_mask", "responses")
"""what is kept of a batch, by verl's names: docs/rl.md"""
STARTUP = "_trueup_startup"
"""the module that captures a process from its start (``capture/launch/startup``)"""
_INFER = {"actor": "compute_log_prob", "reference": "ref_log_prob", "critic": "values"}
_watcher = Watcher()


def watch() -> None:
    """Wrap verl's engines and metrics once they are imported; nothing where the process is not captured."""
    if session.FROM_OUTSIDE not in os.environ:
        return
    if STARTUP not in sys.modules:  # a node without the launcher's start-up file: verl's plugin is the way in
        framework_is_ready("torch", json.loads(os.environ[session.FROM_OUTSIDE]))
    _watcher.when_imported("verl.workers.engine.base", _wrap_engine)
    _watcher.when_imported("verl.workers.engine_workers", _wrap_worker)
    _watcher.when_imported("verl.utils.debug.metrics", _wrap_metrics)


# -- phases ------------------------------------------


def _wrap_engine(module: ModuleType) -> None:
    """Every back end derives from ``BaseEngine``."""
    for name in ("train_batch", "infer_batch"):
        _wrap(module.BaseEngine, name, _phase)


def _wrap_worker(module: ModuleType) -> None:
    """A worker's whole update: the last phase of a global step in its process."""
    for name in ("train_mini_batch", "train_batch"):
        _wrap(module.TrainingWorker, name, _update)


def _wrap(owner: type, name: str, around: Callable[..., Iterator[None]]) -> None:
    inner = getattr(owner, name)
    inside = contextmanager(around)

    @functools.wraps(inner)
    def wrapped(self: object, *args: object, **more: object) -> object:
        with inside(self, args[0] if args else more.get("data"), name):
            return inner(self, *args, **more)

    setattr(owner, name, wrapped)


def _phase(engine: object, data: object, name: str) -> Iterator[None]:
    """One call of an engine. An inference without a global step is a validation: no part of a step."""
    running, step = session.current(), _global_step(data)
    trains = name == "train_batch"
    if running is None or not (trains or step is not None):
        yield
        return
    role = _role(engine)
    running.begin_phase(step, role=role, phase="update" if trains else _INFER.get(role, "infer"))
    try:
        yield
    finally:
        running.end_phase()


def _update(worker: object, data: object, name: str) -> Iterator[None]:
    """``train_mini_batch`` calls ``train_batch``: the outermost ends the step."""
    nested = getattr(worker, "_trueup_updates", 0)
    worker.__dict__["_trueup_updates"] = nested + 1
    try:
        yield
    finally:
        worker.__dict__["_trueup_updates"] = nested
        running = session.current()
        if running is not None and not nested:
            running.step()


def _role(engine: object) -> str:
    """What an engine is for, from its configuration."""
    kind = getattr(getattr(engine, "model_config", None), "model_type", None)
    if kind == "value_model":
        return "critic"
    if kind in ("reward_model", "rm"):
        return "reward"
    forward_only = getattr(getattr(engine, "engine_config", None), "forward_only", False)
    return "reference" if forward_only else "actor"


def _global_step(data: object) -> int | None:
    """verl's ``global_steps`` of a batch, one number or one a row; None of another program."""
    try:
        from verl.utils import tensordict_utils  # type: ignore[import-not-found]

        found = tensordict_utils.get(data, "global_steps", default=None)
        return None if found is None else int(np.max(np.asarray(found)))
    except Exception:  # another version of verl: steps are then counted
        return None


# -- log-probs ------------------------------------------


class Batch(Protocol):
    """verl's ``DataProto``."""

    batch: Mapping[str, object]


def _wrap_metrics(module: ModuleType) -> None:
    """Called with every token's rollout and trainer log-prob, by the old and the new trainer."""
    inner = module.calculate_debug_metrics

    @functools.wraps(inner)
    def calculate_debug_metrics(data: Batch) -> object:
        trainer = sys._getframe(1).f_locals.get("self")
        _keep_tokens(data, getattr(trainer, "global_steps", None))
        return inner(data)

    vars(module)["calculate_debug_metrics"] = calculate_debug_metrics


@shielded
def _keep_tokens(data: Batch, step: int | None) -> None:
    """Write the step's token file, beside the steps of the trace."""
    options = CaptureOptions.from_json(json.loads(os.environ[session.FROM_OUTSIDE])["options"])
    if step is None or step not in options.steps:
        return
    folder = options.output / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: _plain(data.batch[name]) for name in TOKENS if name in data.batch}
    save_tokens(folder / f"step_{step:06d}.npz", arrays, step)


def save_tokens(path: Path, arrays: Mapping[str, Array], step: int) -> None:
    """Write a token file under its name in one rename."""
    writing = path.with_name(f".{path.name}.{os.getpid()}")
    with writing.open("wb") as file:
        np.savez(file, **dict(arrays), step=np.int64(step))  # type: ignore[arg-type]
    writing.rename(path)


def _plain(tensor: object) -> Array:
    """A tensor as numpy, bfloat16 widened."""
    host = tensor.detach().cpu()  # type: ignore[attr-defined]
    wide = (
        host.float()
        if host.is_floating_point() and host.element_size() < np.dtype(np.float32).itemsize
        else host
    )
    array: Array = wide.numpy()
    return array


watch()
