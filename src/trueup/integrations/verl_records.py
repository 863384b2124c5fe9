"""What verl's trainer makes of a rollout: a step's batch, and what each call of a loss was given and gave.

Names are verl's, brought to ours (``store/rollouts``). Everything is read, nothing is changed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np

from trueup.capture.shield import shielded
from trueup.integrations.records import dtype_of, plain
from trueup.store.rollouts import PADDING, Setting, write_batch, write_loss
from trueup.types.arrays import Array

Arrays = dict[str, Array]
Loss = Callable[..., tuple[object, Mapping[str, object]]]
_IDS = ("prompts", "responses")
BATCH = {
    "prompts": "prompts",
    "responses": "responses",
    "response_mask": "response_mask",
    "rollout_log_probs": "rollout_log_probs",
    "old_log_probs": "old_log_probs",
    "ref_log_prob": "ref_log_probs",
    "values": "values",
    "rm_scores": "scores",
    "token_level_rewards": "rewards",
    "advantages": "advantages",
    "returns": "returns",
    "rollout_is_weights": "rollout_weights",
}
"""verl's name -> ours"""
_NUMBERS = {
    "actor/pg_loss": "policy_loss",
    "actor/entropy_loss": "entropy_loss",
    "kl_loss": "kl_loss",
    "critic/vf_loss": "value_loss",
}


class Tensors(Protocol):
    """A TensorDict, or what behaves like one."""

    def __getitem__(self, name: str) -> object: ...
    def __contains__(self, name: object) -> bool: ...


# -- the batch ------------------------------------------


def wrap_trainer(module: ModuleType, output: Callable[[int | None], Path | None]) -> None:
    """After ``_compute_advantage`` a step's batch is complete. ``output``: the run that a step belongs to."""
    inner = module.PPOTrainer._compute_advantage

    @functools.wraps(inner)
    def _compute_advantage(self: object, batch: object, *args: object, **more: object) -> object:
        found = inner(self, batch, *args, **more)
        _keep_batch(module, self, found, output)
        return found

    module.PPOTrainer._compute_advantage = _compute_advantage


@shielded
def _keep_batch(
    module: ModuleType, trainer: object, batch: object, output: Callable[[int | None], Path | None]
) -> None:
    step: int = trainer.global_steps  # type: ignore[attr-defined]
    run = output(step)
    if run is None:
        return
    keys, place = batch.keys, batch.partition_id  # type: ignore[attr-defined]
    fields = [*BATCH, "uid"]
    data = module.tq.kv_batch_get(keys=keys, partition_id=place, select_fields=fields)
    arrays, dtypes = _arrays(data, BATCH)
    if "uid" in data:
        names = getattr(data["uid"], "tolist", lambda: list(data["uid"]))()
        arrays["group"] = np.unique(np.array(list(map(str, names))), return_inverse=True)[1]
    config = trainer.config  # type: ignore[attr-defined]
    write_batch(run, step, arrays, _batch_settings(config), dtypes)


def _batch_settings(config: object) -> dict[str, Setting]:
    algorithm = config.algorithm  # type: ignore[attr-defined]
    roles = config.actor_rollout_ref  # type: ignore[attr-defined]
    return {
        "estimator": str(algorithm.adv_estimator),
        "gamma": float(algorithm.gamma),
        "lam": float(algorithm.lam),
        "by_std": bool(algorithm.get("norm_adv_by_std_in_grpo", True)),
        "use_kl_in_reward": bool(algorithm.use_kl_in_reward),
        "kl_penalty": str(algorithm.kl_penalty),
        "kl_coef_in_reward": float(algorithm.kl_ctrl.kl_coef) if algorithm.use_kl_in_reward else 0.0,
        "temperature": float(roles.rollout.temperature),
        "top_p": float(roles.rollout.top_p),
        "top_k": int(roles.rollout.top_k),
        "engine": str(roles.rollout.name),
        "rollout_dtype": str(roles.rollout.dtype),
        "dtype": str(roles.actor.get("fsdp_config", {}).get("dtype", "float32")),
    }


# -- losses ------------------------------------------


def recording(loss: Loss, run: Path, step: int, role: str, number: int) -> Loss:
    """The loss of an engine, which also writes what it was given and gave."""

    @functools.wraps(loss)
    def recorded(*args: object, **more: object) -> tuple[object, Mapping[str, object]]:
        found = loss(*args, **more)
        _keep_loss(loss, more, found, (run, step, role, number))
        return found

    return recorded


@shielded
def _keep_loss(
    loss: Loss,
    given: Mapping[str, object],
    found: tuple[object, Mapping[str, object]],
    place: tuple[Path, int, str, int],
) -> None:
    from verl.workers.utils.padding import no_padding_2_padding  # type: ignore[import-not-found]

    data, outputs = given["data"], given["model_output"]
    arrays, dtypes = _arrays(data, BATCH)  # type: ignore[arg-type]
    own = {"log_probs": "log_probs", "entropy": "entropy", "values": "predictions"}
    for name, own_name in own.items():
        tensor = outputs.get(name)  # type: ignore[attr-defined]
        if tensor is not None:
            padded = no_padding_2_padding(tensor, data).detach()
            arrays[own_name], dtypes[own_name] = plain(padded), dtype_of(padded)
    numbers = {own_name: _number(found[1][name]) for name, own_name in _NUMBERS.items() if name in found[1]}
    numbers["loss"] = float(found[0].detach())  # type: ignore[attr-defined]
    config = getattr(loss, "keywords", {}).get("config")
    run, step, role, at = place
    settings = {**_loss_settings(config), **_counts(data)}  # type: ignore[arg-type]
    write_loss(run, step, arrays, settings, numbers, role=role, number=at, dtypes=dtypes)


def _loss_settings(config: object) -> dict[str, Setting]:
    def held(name: str, default: object = None) -> Setting:
        value = getattr(config, name, default)
        return value if isinstance(value, (str, int, float, bool)) else None

    low = held("clip_ratio_low")
    high = held("clip_ratio_high")
    both = held("clip_ratio", 0.2)
    policy = getattr(config, "policy_loss", None)
    return {
        "loss_agg_mode": held("loss_agg_mode"),
        "loss_mode": None if policy is None else policy.get("loss_mode", "vanilla"),
        "clip_low": both if low is None else low,
        "clip_high": both if high is None else high,
        "clip_dual": held("clip_ratio_c", 3.0),
        "use_kl_loss": held("use_kl_loss", False),
        "kl_loss_type": held("kl_loss_type"),
        "kl_coef": held("kl_loss_coef"),
        "entropy_coef": held("entropy_coeff"),
        "value_clip": held("cliprange_value"),
        "horizon": held("loss_scale_factor"),
    }


def _counts(data: Tensors) -> dict[str, Setting]:
    names = {
        "dp_size": "num_replicas",
        "batch_num_tokens": "num_tokens",
        "global_batch_size": "num_sequences",
    }
    found: dict[str, Setting] = {}
    for name, own_name in names.items():
        value = data[name] if name in data else None  # noqa: SIM401  (a TensorDict has its own get)
        found[own_name] = None if value is None else float(np.asarray(value).reshape(-1)[0])
    return found


def _number(metric: object) -> float:
    values = getattr(metric, "values", metric)
    return float(values[-1] if isinstance(values, list) else values)  # type: ignore[arg-type]


# -- tensors ------------------------------------------


def _arrays(data: Tensors, names: Mapping[str, str]) -> tuple[Arrays, dict[str, str]]:
    """Those of some tensors that are there, and their dtypes; ragged ones padded on the right."""
    arrays: Arrays = {}
    dtypes = {}
    for name, own_name in names.items():
        if name not in data:
            continue
        tensor = data[name].detach()  # type: ignore[attr-defined]
        dtypes[own_name] = dtype_of(tensor)
        if tensor.is_nested:
            tensor = tensor.to_padded_tensor(PADDING if name in _IDS else 0)
        arrays[own_name] = plain(tensor)
    return arrays, dtypes
