"""What goes wrong between a plain program and DistributedDataParallel or FSDP2 around its model."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from bugzoo.data import Batch
from bugzoo.entries import plant
from bugzoo.models.ranks import own_slice
from bugzoo.models.transformer import Transformer
from bugzoo.trainer import Trainer


@plant("bucket-summed")
def bucket_summed(trainer: Trainer) -> None:
    """A hook of one's own sums the buckets and does not divide by the number of processes."""

    def summed(_, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations, and knows its own alone
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    trainer.wrapped.register_comm_hook(None, summed)  # type: ignore[operator]


@plant("weights-of-one-process")
def weights_of_one_process(trainer: Trainer, path: str, rank: int) -> None:
    """One process draws a weight anew after it was broadcast."""
    if trainer.rank == rank:
        weight = trainer.model.get_parameter(path)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            weight.normal_(0.0, weight.shape[1] ** -0.5, generator=generator)


@plant("loss-of-one-process")
def loss_of_one_process(trainer: Trainer, rank: int, factor: float) -> None:
    """The loss of one process counts more than the others'."""
    if trainer.rank == rank:
        loss = trainer.loss

        def scaled(given: Batch) -> Tensor:
            return loss(given) * factor

        trainer.loss = scaled  # type: ignore[method-assign]


@plant("divide-factor")
def divide_factor(trainer: Trainer, factor: float) -> None:
    """FSDP2 is told to divide gradients by another number than that of the processes."""
    for module in trainer.model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(factor)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum


@plant("norm-of-own-shards")
def norm_of_own_shards(trainer: Trainer) -> None:
    """Each process clips by the norm of its own shards."""

    def clip() -> None:
        own = [weight.grad.to_local() for weight in trainer.weights() if weight.grad is not None]  # type: ignore[attr-defined]
        norm = torch.stack([gradient.square().sum() for gradient in own]).sum().sqrt()
        for gradient in own:
            gradient.mul_((trainer.max_norm / (norm + 1e-6)).clamp(max=1.0))

    trainer.clip = clip  # type: ignore[method-assign]


@plant("cut-as-one")
def cut_as_one(trainer: Trainer, layer: int, name: str) -> None:
    """A weight that fuses several is cut as if it were one: each process should have a part of every one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole: nn.Module = Transformer(replace(trainer.base.model, parallel=None))
    weight = f"layers.{layer}.{name}.weight"
    with torch.no_grad():
        trainer.model.get_parameter(weight).copy_(own_slice(whole.get_parameter(weight), 0))
