"""Mistakes in BERT, ViT, T5 and Whisper."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bugzoo.public.encoders import START
from bugzoo.public.entries import change
from bugzoo.public.language import IGNORED
from bugzoo.public.run import Batch


@change("token-types-all-zero")
def token_types_all_zero(run: Any) -> None:
    """The tokenizer gives both sentences type 0."""
    run.types = lambda first, second: torch.zeros(len(first) + len(second), dtype=torch.int64)


@change("loss-on-all-tokens")
def loss_on_all_tokens(run: Any) -> None:
    """Tokens that were not hidden keep their labels."""
    run.labels = lambda tokens, hidden: tokens.clone()


class UncorrectedAdamW(torch.optim.Optimizer):
    """Moments without bias correction."""

    def __init__(self, groups: Any, *, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update."""
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
                state["step"] += 1
                state["exp_avg"].lerp_(weight.grad, 1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(weight.grad, weight.grad, value=1 - second)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                self.apply(weight, state, group)

    def apply(self, weight: Tensor, state: Any, group: Any) -> None:
        """Without correction."""
        weight.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + group["eps"], value=-group["lr"])


@change("adam-without-bias-correction")
def adam_without_bias_correction(run: Any) -> None:
    """BertAdam's update."""
    run.make_optimizer = lambda: UncorrectedAdamW(
        run.groups(), lr=run.learning_rate, betas=run.betas, eps=run.eps
    )


@change("layer-norm-eps")
def layer_norm_eps(run: Any) -> None:
    """The library's default for the checkpoint's value."""
    run.norm_eps = 1e-3


@change("imagenet-normalisation")
def imagenet_normalisation(run: Any) -> None:
    """Mean and deviation of ImageNet for one half."""
    run.mean, run.deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@change("tied-head-not-scaled")
def tied_head_not_scaled(run: Any) -> None:
    """The tied head gets the decoder's output as it is."""
    run.scales = False


@change("scores-divided-by-root")
def scores_divided_by_root(run: Any) -> None:
    """T5's attention through a function that scales by the root of the head's width."""

    def edit(model: Any) -> None:
        for block in model.encoder.block:
            block.layer[0].SelfAttention.scaling = 12**-0.5

    run.edits.append(edit)


@change("decoder-bias-looks-both-ways")
def decoder_bias_looks_both_ways(run: Any) -> None:
    """The decoder's relative positions go into the encoder's buckets."""

    def edit(model: Any) -> None:
        model.decoder.block[0].layer[0].SelfAttention.is_decoder = False

    run.edits.append(edit)


@change("decoder-labels-shifted-again")
def decoder_labels_shifted_again(run: Any) -> None:
    """The loss for decoder-only models shifts labels that the decoder's inputs have been shifted for."""

    def loss(batch: Batch) -> Tensor:
        given = dict(batch)
        given.pop("items")
        logits = run.wrapped(**given, use_cache=False).logits
        return F.cross_entropy(
            logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=IGNORED
        )

    run.loss = loss


@change("fixed-positions-trained")
def fixed_positions_trained(run: Any) -> None:
    """The encoder's sinusoids are a weight like any other."""
    run.freezes_positions = False


@change("start-token-kept")
def start_token_kept(run: Any) -> None:
    """The collator looks for another begin token: the model's start token stays in the labels."""
    transcript = run.transcript
    run.transcript = lambda tokens: torch.cat([torch.tensor([START]), transcript(tokens)])
