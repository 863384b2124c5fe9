"""Mistakes in plain training loops and in what runs in several processes."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from bugzoo.public.entries import change
from bugzoo.public.planted.encoders import UncorrectedAdamW
from bugzoo.public.run import Batch

# ---- optimizer


@change("adam-for-adamw")
def adam_for_adamw(run: Any) -> None:
    """Weight decay is part of the gradient."""
    run.make_optimizer = lambda: torch.optim.Adam(run.groups(), lr=run.learning_rate, betas=run.betas)


class EpsInsideAdamW(UncorrectedAdamW):
    """The denominator is sqrt(v + eps)."""

    def apply(self, weight: Tensor, state: Any, group: Any) -> None:
        first, second = (1 - beta ** state["step"] for beta in group["betas"])
        root = (state["exp_avg_sq"] / second + group["eps"]).sqrt()
        weight.addcdiv_(state["exp_avg"] / first, root, value=-group["lr"])


@change("eps-inside-root")
def eps_inside_root(run: Any) -> None:
    """Another place of eps."""
    run.make_optimizer = lambda: EpsInsideAdamW(
        run.groups(), lr=run.learning_rate, betas=run.betas, eps=run.eps
    )


@change("beta2-default")
def beta2_default(run: Any) -> None:
    """The option is not passed on."""
    run.betas = (0.9, 0.999)


@change("everything-decays")
def everything_decays(run: Any) -> None:
    """Norms, too."""
    run.decays = lambda name, weight: True


@change("no-master-weights")
def no_master_weights(run: Any) -> None:
    """The optimizer updates the bfloat16 weights themselves."""
    make = run.make_optimizer

    def optimizer() -> torch.optim.Optimizer:
        run.model.to(torch.bfloat16)
        found: torch.optim.Optimizer = make()
        at = iter([weight for weight, _ in run.copies if weight.dim() >= 2])
        others = iter([weight for weight, _ in run.copies if weight.dim() < 2])
        found.param_groups[0]["params"] = list(at)
        found.param_groups[1]["params"] = list(others)
        run.copies = []
        return found

    run.make_optimizer = optimizer


# ---- loop


@change("loss-not-divided")
@change("loss-not-divided-fp16")
def loss_not_divided(run: Any) -> None:
    """Losses of microbatches are summed, not averaged."""
    run.loss = lambda batch: run.mean(run.wrapped(batch["idx"]), batch["targets"])


@change("zero-grad-every-microbatch")
def zero_grad_every_microbatch(run: Any) -> None:
    """Gradients are cleared in the inner loop."""
    backward = run.backward

    def cleared(loss: Tensor) -> None:
        run.optimizer.zero_grad()
        backward(loss)

    run.backward = cleared


@change("zero-grad-never")
def zero_grad_never(run: Any) -> None:
    """Gradients of earlier steps are kept."""
    run.clear = lambda: None


@change("residual-init-not-scaled")
def residual_init_not_scaled(run: Any) -> None:
    """Residual projections are initialised like all others."""

    def edit(model: Any) -> None:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("c_proj.weight"):
                    weight.mul_(math.sqrt(2 * len(model.h)))

    run.edits.append(edit)


@change("clipped-every-microbatch")
def clipped_every_microbatch(run: Any) -> None:
    """Clipping stands in the inner loop."""
    backward = run.backward

    def clipped(loss: Tensor) -> None:
        backward(loss)
        nn.utils.clip_grad_norm_(run.weights(), run.max_norm)

    run.backward = clipped


@change("clipped-before-unscaling")
def clipped_before_unscaling(run: Any) -> None:
    """Clipping sees gradients that are still scaled."""
    run.clip = lambda: nn.utils.clip_grad_norm_(run.weights(), run.max_norm)


@change("same-order-every-epoch")
def same_order_every_epoch(run: Any) -> None:
    """The sampler is not told the epoch: the second begins with the first one's batch."""
    whole = run.whole_batch
    run.whole_batch = lambda step: whole(0)


# ---- processes


@change("synchronised-first-microbatch")
def synchronised_first_microbatch(run: Any) -> None:
    """Gradients are exchanged with the first microbatch, not the last."""

    def synchronised(index: int, number: int) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if index == 0 else run.wrapped.no_sync()

    run.synchronised = synchronised


@change("loss-times-processes")
def loss_times_processes(run: Any) -> None:
    """As if gradients were not averaged already."""
    loss = run.loss
    run.loss = lambda batch: loss(batch) * run.world


@change("processes-read-the-same")
def processes_read_the_same(run: Any) -> None:
    """The loader has no distributed sampler."""
    batches = run.batches

    def same(step: int) -> list[Batch]:
        rank, run.rank = run.rank, 0
        found: list[Batch] = batches(step)
        run.rank = rank
        return found

    run.batches = same


@change("labels-of-own-process-counted")
def labels_of_own_process_counted(run: Any) -> None:
    """Each process divides by its own labels."""
    batches = run.batches

    def own(step: int) -> list[Batch]:
        found: list[Batch] = batches(step)
        items = torch.stack([run.count(batch) for batch in found]).sum()
        return [batch | {"items": items} for batch in found]

    run.batches = own


@change("schedule-steps-per-process")
def schedule_steps_per_process(run: Any) -> None:
    """The schedule is stepped once a process."""

    def advance() -> None:
        for _ in range(run.world):
            run.schedule.step()

    run.advance = advance


@change("norm-of-own-shards")
def norm_of_own_shards(run: Any) -> None:
    """Each process clips its shards by their own norm."""

    def clip() -> None:
        own = [weight.grad.to_local() for weight in run.weights() if weight.grad is not None]
        norm = torch.stack([part.norm() for part in own]).norm()
        for part in own:
            part.mul_((run.max_norm / (norm + 1e-6)).clamp(max=1.0))

    run.clip = clip


@change("reduced-in-bf16")
def reduced_in_bf16(run: Any) -> None:
    """Gradients are reduced in the dtype that they are computed in."""
    run.reduce_dtype = torch.bfloat16


@change("gathered-without-gradients")
def gathered_without_gradients(run: Any) -> None:
    """``all_gather`` gives no gradient to what comes from other processes, nor to the own part."""

    def gathered(features: Tensor) -> Tensor:
        parts = [torch.zeros_like(features) for _ in range(run.world)]
        torch.distributed.all_gather(parts, features.detach())
        return torch.cat(parts)

    run.gathered = gathered


# ---- nets


@change("batch-norm-momentum-of-tensorflow")
def batch_norm_momentum_of_tensorflow(run: Any) -> None:
    """What TensorFlow calls momentum is one minus PyTorch's."""
    run.momentum = 0.9


@change("batch-norm-eps-of-tensorflow")
def batch_norm_eps_of_tensorflow(run: Any) -> None:
    """The other framework's default."""
    run.norm_eps = 1e-3


@change("no-self-loops")
def no_self_loops(run: Any) -> None:
    """Nodes do not see themselves."""

    def edit(model: Any) -> None:
        model.conv1.self_loops = model.conv2.self_loops = False

    run.edits.append(edit)


@change("unknown-class-counts")
def unknown_class_counts(run: Any) -> None:
    """Rows without a class are taken for class 0."""

    def losses(batch: Batch) -> tuple[Tensor, Tensor]:
        scores, number = run.wrapped(batch["x"])
        labels = batch["labels"].clamp(min=0)
        return nn.functional.cross_entropy(scores, labels), nn.functional.mse_loss(number, batch["numbers"])

    run.losses = losses


@change("losses-without-logarithm")
def losses_without_logarithm(run: Any) -> None:
    """The uncertainty's own term is left out."""
    run.combine = lambda first, second: (torch.exp(-run.model.log_vars) * torch.stack([first, second])).sum()
