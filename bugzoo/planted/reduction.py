"""What goes wrong between a rank's gradient and the one the optimizer gets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from bugzoo.entries import plant
from bugzoo.trainer import Trainer


def not_reduced(trainer: Trainer, is_left_out: Callable[[str], bool]) -> None:
    """Leave some weights out of the reduction."""
    reduce_one = trainer.reduce_one

    def reduce(name: str, weight: nn.Parameter) -> None:
        if not is_left_out(name):
            reduce_one(name, weight)

    trainer.reduce_one = reduce  # type: ignore[method-assign]


@plant("norm-not-reduced")
def norm_not_reduced(trainer: Trainer) -> None:
    """Gradients of norms on sequence parts stay partial (Megatron-LM #1446)."""
    not_reduced(trainer, lambda name: "ln" in name)


@plant("router-not-synced")
def router_not_synced(trainer: Trainer) -> None:
    """Routers keep their own rank's gradient (Megatron-LM #599)."""
    not_reduced(trainer, lambda name: "router" in name)


@plant("embedding-not-synced")
def embedding_not_synced(trainer: Trainer) -> None:
    """The tied embedding keeps its own rank's gradient (Megatron-LM #656)."""
    not_reduced(trainer, lambda name: name.startswith("emb"))


@plant("expert-doubled")
def expert_doubled(trainer: Trainer) -> None:
    """Expert gradients are summed where all others are averaged."""
    reduce_one = trainer.reduce_one

    def reduce(name: str, weight: nn.Parameter) -> None:
        reduce_one(name, weight)
        if ".experts." in name and weight.grad is not None:
            weight.grad.mul_(trainer.world)

    trainer.reduce_one = reduce  # type: ignore[method-assign]


@plant("ddp-bypassed")
def ddp_bypassed(trainer: Trainer) -> None:
    """The loop calls the model inside the wrapper."""
    trainer.wrapped = trainer.model


@plant("never-synced")
def never_synced(trainer: Trainer) -> None:
    """``no_sync`` around the last microbatch too."""
    trainer.exchange = lambda *, last: trainer.wrapped.no_sync()  # type: ignore[method-assign, operator]


@plant("not-averaged")
def not_averaged(trainer: Trainer) -> None:
    """Gradients are summed over ranks and not divided."""

    def reduce(name: str, weight: nn.Parameter) -> None:
        if weight.grad is not None:
            dist.all_reduce(weight.grad)

    trainer.reduce_one = reduce  # type: ignore[method-assign]


@plant("context-averaged")
def context_averaged(trainer: Trainer) -> None:
    """Gradients of sequence parts are averaged where they have to be summed."""
    reduce_one = trainer.reduce_one

    def reduce(name: str, weight: nn.Parameter) -> None:
        reduce_one(name, weight)
        if weight.grad is not None:
            weight.grad.div_(trainer.world)

    trainer.reduce_one = reduce  # type: ignore[method-assign]


@plant("reduced-in-bf16")
def reduced_in_bf16(trainer: Trainer) -> None:
    """Gradients travel as bfloat16."""
    reduce_one = trainer.reduce_one

    def reduce(name: str, weight: nn.Parameter) -> None:
        if weight.grad is not None:
            weight.grad = weight.grad.to(torch.bfloat16).float()
        reduce_one(name, weight)

    trainer.reduce_one = reduce  # type: ignore[method-assign]


@plant("zero-grad-missing")
def zero_grad_missing(trainer: Trainer) -> None:
    """Gradients of earlier steps stay."""
    trainer.clear = lambda: None  # type: ignore[method-assign]


@plant("zero-grad-between")
def zero_grad_between(trainer: Trainer) -> None:
    """Gradients are set to zero before every microbatch: only the last counts."""
    exchange = trainer.exchange

    def cleared(*, last: bool) -> contextlib.AbstractContextManager[object]:
        trainer.model.zero_grad(set_to_none=False)
        return exchange(last=last)

    trainer.exchange = cleared  # type: ignore[method-assign]


@plant("clipped-before-unscaling")
def clipped_before_unscaling(trainer: Trainer) -> None:
    """Clipping sees gradients times the loss scale."""
    trainer.unscale = lambda: None  # type: ignore[method-assign]


@plant("clip-off")
def clip_off(trainer: Trainer) -> None:
    """No clipping."""
    trainer.max_norm = float("inf")


@plant("clip-by-value")
def clip_by_value(trainer: Trainer) -> None:
    """Every element is clipped by itself."""
    trainer.clip = lambda: nn.utils.clip_grad_value_(trainer.weights(), 1e-3)  # type: ignore[method-assign]


@plant("clip-max-norm")
def clip_max_norm(trainer: Trainer) -> None:
    """Another largest norm."""
    trainer.max_norm = 1.0


@plant("norm-counts-replicas")
def norm_counts_replicas(trainer: Trainer) -> None:
    """The norm over all ranks counts what they all have once for each."""
    square_sum = trainer.square_sum

    def twice(*, sharded: bool) -> torch.Tensor:
        return square_sum(sharded=sharded) * (1 if sharded else trainer.world)

    trainer.square_sum = twice  # type: ignore[method-assign]


@plant("clip-on-one-rank")
def clip_on_one_rank(trainer: Trainer) -> None:
    """Only the first rank clips (DeepSpeed #1801)."""
    if trainer.rank != 0:
        trainer.max_norm = float("inf")


@plant("accumulated-in-bf16")
def accumulated_in_bf16(trainer: Trainer) -> None:
    """Microbatches are added up in bfloat16."""
    masters = trainer.masters
    assert masters is not None

    def accumulate() -> None:
        for name, weight in masters.working.items():
            if weight.grad is not None:
                masters.copies[name].grad = weight.grad.float()

    masters.accumulate = accumulate  # type: ignore[method-assign]
