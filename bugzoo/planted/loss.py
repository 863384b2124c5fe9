"""What goes wrong between logits and the number that backward starts from."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bugzoo.data import Batch
from bugzoo.entries import plant
from bugzoo.trainer import Trainer


@plant("mean-of-means")
def mean_of_means(trainer: Trainer) -> None:
    """Every microbatch is divided by its own tokens, and the means averaged."""
    before = trainer.batches

    def batches(step: int) -> list[Batch]:
        given = before(step)
        return [{**one, "denominator": one["mask"].sum() * len(given)} for one in given]

    trainer.batches = batches  # type: ignore[method-assign]


@plant("own-tokens")
def own_tokens(trainer: Trainer) -> None:
    """Each rank divides by its own tokens, not by those of all."""
    trainer.denominator = lambda tokens: tokens / trainer.world  # type: ignore[method-assign]


@plant("context-scale")
def context_scale(trainer: Trainer) -> None:
    """Gradients of sequence parts are summed, and the loss is multiplied by their number as well."""
    criterion = trainer.model.criterion
    forward = criterion.forward
    criterion.forward = lambda *given: forward(*given) * trainer.world


@plant("label-smoothing")
def label_smoothing(trainer: Trainer) -> None:
    """Smoothing left on from another recipe."""
    trainer.model.criterion.label_smoothing = 0.1


@plant("loss-bf16")
def loss_bf16(trainer: Trainer) -> None:
    """Logits are not cast up before cross-entropy."""
    criterion = trainer.model.criterion

    def of_token(scores: Tensor, labels: Tensor) -> Tensor:
        low = F.log_softmax(scores.to(torch.bfloat16), dim=-1)
        return -low.gather(-1, labels[..., None]).squeeze(-1).float()

    criterion.of_token = of_token


@plant("loss-mask-ignored")
def loss_mask_ignored(trainer: Trainer) -> None:
    """The criterion takes the mask and does not use it."""
    criterion = trainer.model.criterion
    forward = criterion.forward
    criterion.forward = lambda logits, labels, mask, denominator: forward(
        logits, labels, torch.ones_like(mask), denominator
    )


@plant("vocabulary-padding-counted")
def vocabulary_padding_counted(trainer: Trainer) -> None:
    """The rows that fill up the vocabulary take part in the softmax."""
    trainer.model.criterion.masks_padding = False


@plant("loss-sum")
def loss_sum(trainer: Trainer) -> None:
    """A sum where a mean is meant: the number of rows too large."""
    criterion = trainer.model.criterion
    forward = criterion.forward
    criterion.forward = lambda logits, *rest: forward(logits, *rest) * logits.shape[0]


@plant("accumulation-not-divided")
def accumulation_not_divided(trainer: Trainer) -> None:
    """The loss of a microbatch is divided by its own tokens alone."""
    before = trainer.batches

    def batches(step: int) -> list[Batch]:
        return [{**one, "denominator": one["mask"].sum()} for one in before(step)]

    trainer.batches = batches  # type: ignore[method-assign]


@plant("logit-temperature")
def logit_temperature(trainer: Trainer) -> None:
    """Logits divided by a temperature left over from sampling."""

    def loss(given: Batch) -> Tensor:
        logits = trainer.wrapped(input_ids=given["ids"]).logits / 0.9
        return F.cross_entropy(logits.flatten(0, 1).float(), given["labels"].flatten())

    trainer.library_loss = loss  # type: ignore[method-assign]


@plant("auxiliary-missing")
def auxiliary_missing(trainer: Trainer) -> None:
    """The routers' balance loss is not added."""
    trainer.model.with_auxiliary = lambda loss, mask, denominator: loss


@plant("auxiliary-weight")
def auxiliary_weight(trainer: Trainer) -> None:
    """The balance loss of Qwen with another coefficient."""
    trainer.model.router_aux_loss_coef = 0.1


@plant("auxiliary-detached")
def auxiliary_detached(trainer: Trainer) -> None:
    """The balance loss is logged, not optimised."""
    model: Any = trainer.model
    add = model.with_auxiliary

    def detached(loss: Tensor, mask: Tensor, denominator: Tensor) -> Tensor:
        for layer in model.layers:
            layer.mlp.auxiliary = layer.mlp.auxiliary.detach()
        whole: Tensor = add(loss, mask, denominator)
        return whole

    model.with_auxiliary = detached
