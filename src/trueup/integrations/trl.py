"""TRL's ``GRPOTrainer``: the batch it generates and scores, and each call of its loss.

A step of the records is the optimizer step in which a batch was generated; later updates on the same batch
are its mini-batches.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from types import ModuleType

import numpy as np

from trueup.capture import session
from trueup.capture.shield import shielded
from trueup.integrations import Watcher
from trueup.integrations.records import LogProbs, dtype_of, plain, run_of
from trueup.store.rollouts import PADDING, Setting, write_batch, write_loss
from trueup.types.arrays import Array

Given = Mapping[str, object]
_AGGREGATES = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "dapo": "token-mean",
}
"""TRL's loss type -> verl's name of what it is"""
_watcher = Watcher()


def watch() -> None:
    """Wrap the trainer once it is imported; nothing where the process is not captured."""
    if session.FROM_OUTSIDE in os.environ:
        _watcher.when_imported("trl.trainer.grpo_trainer", _wrap_trainer)


def _wrap_trainer(module: ModuleType) -> None:
    trainer = module.GRPOTrainer
    for name, around in (
        ("_generate_and_score_completions", _scored),
        ("_calculate_rewards", _rewarded),
        ("_get_per_token_logps_and_entropies", _given_log_probs),
        ("_compute_loss", _lost),
    ):
        _wrap(trainer, name, around)


def _wrap(owner: type, name: str, after: object) -> None:
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def wrapped(self: object, *args: object, **more: object) -> object:
        found = inner(self, *args, **more)
        after(self, args, found)  # type: ignore[operator]
        return found

    setattr(owner, name, wrapped)


def _of(trainer: object) -> dict[str, object]:
    """What is kept of a trainer between calls."""
    kept: dict[str, object] = vars(trainer).setdefault("_trueup_records", {})
    return kept


@shielded
def _rewarded(trainer: object, args: tuple[object, ...], found: object) -> None:
    _of(trainer)["rewards"] = found


@shielded
def _given_log_probs(trainer: object, args: tuple[object, ...], found: object) -> None:
    """Log-probs and entropies of the forward that ran last: within a loss, those of the loss."""
    _of(trainer)["forward"] = found


@shielded
def _scored(trainer: object, args: tuple[object, ...], found: Mapping[str, object]) -> None:
    """A batch is complete."""
    model, state = trainer.model, trainer.state  # type: ignore[attr-defined]
    if not model.training:
        return
    step: int = state.global_step
    _of(trainer)["step"] = step
    run = run_of(step)
    log_probs: LogProbs = _of(trainer).setdefault("log_probs", LogProbs())  # type: ignore[assignment]
    if not log_probs.wanted(step):
        return
    arrays, dtypes = _sequences(found)
    part = trainer.accelerator.process_index  # type: ignore[attr-defined]
    names = ("rollout_log_probs", "old_log_probs", "response_mask", "responses")
    tokens = {name: arrays[name] for name in names if name in arrays}
    if len(tokens) == len(names):  # of vLLM; a rollout by the model itself has no log-probs of its own
        log_probs.keep(step, tokens, part=part)
    if run is None:
        return
    rewards = _of(trainer).get("rewards")
    rows, width = arrays["response_mask"].shape
    first = trainer.accelerator.process_index * rows  # type: ignore[attr-defined]
    weights = trainer.reward_weights  # type: ignore[attr-defined]
    if rewards is not None:
        scores = np.nansum(plain(rewards) * plain(weights)[None], axis=1)[first : first + rows]
        arrays["scores"] = np.zeros((rows, width), np.float32)
        last = np.maximum((arrays["responses"] != PADDING).sum(axis=1) - 1, 0)
        arrays["scores"][np.arange(rows), last] = scores
    arrays["group"] = (first + np.arange(rows)) // trainer.num_generations  # type: ignore[attr-defined]
    write_batch(run, step, arrays, _batch_settings(trainer), dtypes, part=part)


@shielded
def _lost(trainer: object, args: tuple[object, ...], found: object) -> None:
    """A call of the loss, ``_compute_loss(model, inputs)``."""
    model, state = trainer.model, trainer.state  # type: ignore[attr-defined]
    step = _of(trainer).get("step")
    run = run_of(step) if isinstance(step, int) else None
    if run is None or not isinstance(step, int) or not model.training:
        return
    inputs: Given = args[1]  # type: ignore[assignment]
    arrays, dtypes = _sequences(inputs)
    forward: Sequence[object] = _of(trainer)["forward"]  # type: ignore[assignment]
    log_probs, entropy = forward[0], forward[1]
    arrays["log_probs"], dtypes["log_probs"] = plain(log_probs), dtype_of(log_probs)
    arrays.setdefault("old_log_probs", arrays["log_probs"])
    if entropy is not None:
        arrays["entropy"] = plain(entropy)
    write_loss(
        run,
        step,
        arrays,
        _loss_settings(trainer, inputs),
        {"loss": float(found.detach())},  # type: ignore[attr-defined]
        role="actor",
        number=state.global_step - step,
        dtypes=dtypes,
    )


def _sequences(given: Given) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays of a batch by our names, and the dtypes that they had."""
    mask, prompts = plain(given["completion_mask"]), plain(given["prompt_mask"])
    arrays = {
        "prompts": np.where(prompts > 0, plain(given["prompt_ids"]), PADDING),
        "responses": np.where(mask > 0, plain(given["completion_ids"]), PADDING),
        "response_mask": mask * plain(given["tool_mask"]) if "tool_mask" in given else mask,
    }
    dtypes = {}
    for name, own_name in (
        ("sampling_per_token_logps", "rollout_log_probs"),
        ("old_per_token_logps", "old_log_probs"),
        ("ref_per_token_logps", "ref_log_probs"),
        ("advantages", "advantages"),
    ):
        if given.get(name) is not None:
            arrays[own_name], dtypes[own_name] = plain(given[name]), dtype_of(given[name])
    if arrays["advantages"].ndim == 1:
        arrays["advantages"] = arrays["advantages"][:, None] * arrays["response_mask"]
    return arrays, dtypes


def _batch_settings(trainer: object) -> dict[str, Setting]:
    args = trainer.args  # type: ignore[attr-defined]
    summed = args.multi_objective_aggregation == "sum_then_normalize"
    return {
        "estimator": "grpo" if summed else f"grpo, {args.multi_objective_aggregation}",
        "by_std": str(args.scale_rewards) not in ("none", "False"),
        "std_over": "batch" if args.scale_rewards == "batch" else "group",
        "epsilon": 1e-4,
        "temperature": float(args.temperature),
        "top_p": float(args.top_p),
        "engine": "vllm" if args.use_vllm else "transformers",
        "dtype": dtype_of(next(trainer.model.parameters())),  # type: ignore[attr-defined]
    }


def _loss_settings(trainer: object, inputs: Given) -> dict[str, Setting]:
    args = trainer.args  # type: ignore[attr-defined]
    kind = str(args.loss_type)
    calls = float(trainer.current_gradient_accumulation_steps)  # type: ignore[attr-defined]
    known = (
        kind in _AGGREGATES
        and args.importance_sampling_level == "token"
        and args.delta is None
        and args.top_entropy_quantile >= 1
        and "importance_sampling_ratio" not in inputs
    )
    settings: dict[str, Setting] = {
        "loss_mode": "vanilla" if known else kind,
        "loss_agg_mode": _AGGREGATES.get(kind, kind),
        "clip_low": float(args.epsilon),
        "clip_high": float(args.epsilon if args.epsilon_high is None else args.epsilon_high),
        "use_kl_loss": args.beta != 0,
        "kl_loss_type": "k3_unbounded",
        "kl_coef": float(args.beta),
        "kl_weighted": bool(getattr(args, "use_bias_correction_kl", False)),
        "num_replicas": 1 / calls,
        "horizon": float(args.max_completion_length) if kind == "dr_grpo" else None,
    }
    if kind == "dapo":
        items = float(inputs["num_items_in_batch"]) / trainer.accelerator.num_processes  # type: ignore[attr-defined, arg-type]
        settings |= {"num_tokens": items * calls / args.steps_per_generation, "num_replicas": 1.0}
    return settings
