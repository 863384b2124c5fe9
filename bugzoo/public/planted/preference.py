"""Mistakes in adapters, preference losses and contrast."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from bugzoo.public.entries import change
from bugzoo.public.language import IGNORED


@change("alpha-not-divided")
def alpha_not_divided(run: Any) -> None:
    """The adapter's product is scaled by alpha, not by alpha / r."""

    def edit(model: Any) -> None:
        for layer in model.model.layers:
            for name in ("q_proj", "v_proj"):
                getattr(layer.self_attn, name).scaling = run.alpha

    run.edits.append(edit)


@change("rank-stabilised-scale")
def rank_stabilised_scale(run: Any) -> None:
    """alpha / sqrt(r)."""

    def edit(model: Any) -> None:
        for layer in model.model.layers:
            for name in ("q_proj", "v_proj"):
                getattr(layer.self_attn, name).scaling = run.alpha / math.sqrt(run.r)

    run.edits.append(edit)


@change("checkpointed-without-input-gradients")
def checkpointed_without_input_gradients(run: Any) -> None:
    """Reentrant checkpoints of a frozen embedding's output have no gradient: adapters are not trained."""

    def checkpoint() -> None:
        run.model.activation_checkpointing_enable({"use_reentrant": True})
        run.model.disable_input_require_grads()  # transformers 5 asks for them itself

    run.checkpoint = checkpoint


@change("log-probabilities-summed")
def log_probabilities_summed(run: Any) -> None:
    """Sums over tokens for means."""

    def of_tokens(logits: Tensor, labels: Tensor) -> Tensor:
        counts = labels != IGNORED
        each = logits.float().log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
        return (each * counts).sum(1)

    run.of_tokens = of_tokens


@change("dropout-in-preference-training")
def dropout_in_preference_training(run: Any) -> None:
    """The policy's dropout is left on."""
    run.dropout = 0.1


@change("reference-is-the-policy")
def reference_is_the_policy(run: Any) -> None:
    """Not a frozen copy: it moves with the policy."""
    run.make_reference = lambda: run.model


@change("tokens-weighted-alike")
def tokens_weighted_alike(run: Any) -> None:
    """The mean over all tokens for the mean over answers."""
    run.reduce = lambda each, counts: (each * counts).sum() / counts.sum()


@change("scale-without-exponential")
def scale_without_exponential(run: Any) -> None:
    """The learned logarithm is the scale."""
    run.edits.append(lambda model: setattr(model, "scale", lambda: model.logit_scale * 1.0))
