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
from types import ModuleType
from typing import Protocol

import numpy as np

from trueup.capture import session
from trueup.capture.launch.child import framework_is_ready
from trueup.capture.shield import shielded
from trueup.integrations import Watcher
from trueup.integrations.layers import TrainerLayers
from trueup.integrations.records import LogProbs, plain, run_of
from trueup.integrations.verl_records import recording, wrap_trainer

TOKENS = ("rollout_log_probs", "old_log_probs", "response_mask", "responses")
"""what is kept of a batch, by verl's names: docs/rl.md"""
STARTUP = "_trueup_startup"
"""the module that captures a process from its start (``capture/launch/startup``)"""
_INFER = {"actor": "compute_log_prob", "reference": "ref_log_prob", "critic": "values"}
Phase = tuple[int | None, str, int]
"""step, role, and how many of the same came before"""
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
    _watcher.when_imported("verl.trainer.ppo.v1.trainer_base", functools.partial(wrap_trainer, output=run_of))


# -- phases ------------------------------------------


def _wrap_engine(module: ModuleType) -> None:
    """Every back end derives from ``BaseEngine``."""
    for name in ("train_batch", "infer_batch"):
        _wrap(module.BaseEngine, name, _phase)


def _wrap_worker(module: ModuleType) -> None:
    """A worker's whole update: the last phase of a global step in its process."""
    for name in ("train_mini_batch", "train_batch"):
        _wrap(module.TrainingWorker, name, _update)


def _wrap(owner: type, name: str, around: Callable[..., Iterator[Phase | None]]) -> None:
    inner = getattr(owner, name)
    inside = contextmanager(around)

    @functools.wraps(inner)
    def wrapped(self: object, *args: object, **more: object) -> object:
        given = args[0] if args else more.get("data")
        with inside(self, given, name) as phase:
            if phase is not None and callable(more.get("loss_function")):
                more = {**more, "loss_function": _recorded(self, given, more["loss_function"], phase)}
            return inner(self, *args, **more)

    setattr(owner, name, wrapped)


def _phase(engine: object, data: object, name: str) -> Iterator[Phase | None]:
    """One call of an engine. An inference without a global step is a validation: no part of a step."""
    running, step = session.current(), _global_step(data)
    trains = name == "train_batch"
    if running is None or not (trains or step is not None):
        yield None
        return
    role = _role(engine)
    number = running.begin_phase(step, role=role, phase="update" if trains else _INFER.get(role, "infer"))
    layers = _layers(engine, step) if role == "actor" and (not trains or not number) else None
    if layers is not None and step is not None:
        layers.begin("noise" if trains else "training", step)
    try:
        yield (step, role, number)
    finally:
        if layers is not None:
            layers.end()
        running.end_phase()


@shielded
def _layers(engine: object, step: int | None) -> TrainerLayers | None:
    """What keeps the layer outputs of the actor in a captured step; None of a model that has no layers to
    see."""
    run, kept = run_of(step), vars(engine)
    if run is None:
        return None
    if "_trueup_layers" not in kept:
        try:
            kept["_trueup_layers"] = TrainerLayers(engine.module, run)  # type: ignore[attr-defined]
        except (ValueError, AttributeError):  # Megatron's chunks are a list
            kept["_trueup_layers"] = None
    found: TrainerLayers | None = kept["_trueup_layers"]
    return found


def _recorded(engine: object, data: object, loss: object, phase: Phase) -> object:
    """The loss, recorded where this process has its output; as it is outside of captured steps."""
    step, role, number = phase
    run = run_of(step)
    has_outputs = getattr(engine, "is_mp_src_rank_with_outputs", lambda: True)
    if run is None or step is None or not has_outputs():
        return loss
    return recording(loss, run, step, role, number)  # type: ignore[arg-type]


def _update(worker: object, data: object, name: str) -> Iterator[Phase | None]:
    """``train_mini_batch`` calls ``train_batch``: the outermost ends the step."""
    nested = getattr(worker, "_trueup_updates", 0)
    worker.__dict__["_trueup_updates"] = nested + 1
    try:
        yield None
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


class VerlBatch(Protocol):
    """verl's ``DataProto``."""

    batch: Mapping[str, object]


def _wrap_metrics(module: ModuleType) -> None:
    """Called with every token's rollout and trainer log-prob, by the old and the new trainer."""
    inner, log_probs = module.calculate_debug_metrics, LogProbs()

    @functools.wraps(inner)
    def calculate_debug_metrics(data: VerlBatch) -> object:
        trainer = sys._getframe(1).f_locals.get("self")
        _keep_tokens(log_probs, data, getattr(trainer, "global_steps", None))
        return inner(data)

    vars(module)["calculate_debug_metrics"] = calculate_debug_metrics


@shielded
def _keep_tokens(log_probs: LogProbs, data: VerlBatch, step: int | None) -> None:
    """Write the step's token file, beside the steps of the trace, and what a monitor measures of it."""
    if step is not None:
        log_probs.over(step)
    if step is not None and log_probs.wanted(step):
        log_probs.keep(step, {name: plain(data.batch[name]) for name in TOKENS if name in data.batch})


watch()
