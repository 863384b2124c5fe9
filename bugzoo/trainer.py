"""The training loop of every base program, one method a thing that may go wrong.

A fault replaces one of the methods of one ``Trainer``, or changes something in its model; nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bugzoo.bases import Base
from bugzoo.data import Batch, Shape, batch
from bugzoo.models.hugging_face import MODELS, trained_like
from bugzoo.models.ranks import own_slice, rank_and_world, summed
from bugzoo.models.shards import is_sharded, load_shards, norm_like
from bugzoo.models.transformer import Transformer
from bugzoo.optimizers import MasterWeights, adamw, warm_up

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}

AVERAGED = ("ddp", "fsdp", "mean")
"""reductions that average over processes, each of which reads its own data"""


class Trainer:
    """Model, data, optimizer and schedule of one base program, and a step spelled out."""

    def __init__(self, base: Base, *, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.base = base
        self.rank, self.world = rank_and_world()
        self.model: Any = make_model(base)
        torch.manual_seed(seed + 100 + self.rank)  # each process draws its own dropout
        self.wrapped: nn.Module = self.model
        if base.reduction == "ddp":
            self.wrapped = nn.parallel.DistributedDataParallel(self.model)
        if base.reduction == "fsdp":
            fully_shard_blocks(self.model)
        self.masters: MasterWeights | None = None
        if base.master_weights:
            self.model.to(torch.bfloat16)
            self.masters = MasterWeights(self.model)
        self.set_optimizer(adamw(self.named_weights(), base))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12) if base.precision == "fp16" else None
        self.max_norm = base.max_norm
        self.data_step = 0
        """number of the next step's batch"""

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Train with this one, on the base's schedule."""
        self.optimizer = optimizer
        self.schedule = warm_up(optimizer, self.base)

    def named_weights(self) -> list[tuple[str, nn.Parameter]]:
        """What the optimizer updates."""
        return self.masters.named() if self.masters else list(self.model.named_parameters())

    def weights(self) -> list[nn.Parameter]:
        """The same without names."""
        return [weight for _, weight in self.named_weights()]

    # ---- one step

    def step(self) -> float:
        """Forward and backward of every microbatch, reduce, clip, update; the mean loss."""
        batches = self.batches(self.data_step)
        total = 0.0
        for index, given in enumerate(batches):
            with self.exchange(last=index == len(batches) - 1):
                loss = self.loss(given)
                self.backward(loss)
            self.accumulate()
            total += loss.item()
        self.reduce()
        self.unscale()
        self.clip()
        self.update()
        self.advance()
        self.clear()
        self.data_step += 1
        return total

    def batches(self, step: int) -> list[Batch]:
        """The microbatches of a step, each with the number of tokens its loss is divided by."""
        base = self.base
        shape = Shape(
            vocab_size=base.model.vocab_size, rows=base.rows, length=base.length, packed=base.packed
        )
        given = [
            batch(shape, step=step, microbatch=index, shard=self.shard())
            for index in range(base.accumulation)
        ]
        tokens = torch.stack([one["mask"].sum() for one in given]).sum()
        if base.model.parallel == "context":
            given = [self.own_part(one) for one in given]
        denominator = self.denominator(tokens)
        return [{**one, "denominator": denominator} for one in given]

    def own_part(self, whole: Batch) -> Batch:
        """This rank's part of the sequence, with its positions."""
        positions = torch.arange(whole["ids"].shape[1]).expand_as(whole["ids"])
        return {name: own_slice(x, 1) for name, x in {**whole, "positions": positions}.items()}

    def shard(self) -> int:
        """Which part of the data this process reads: its own, where processes share out the data."""
        return self.rank if self.base.reduction in AVERAGED else 0

    def denominator(self, tokens: Tensor) -> Tensor:
        """Tokens of all microbatches; of all processes over their number, where gradients are averaged."""
        if self.base.reduction in AVERAGED:
            return summed(tokens) / self.world
        return tokens

    def exchange(self, *, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Gradients are exchanged with the last microbatch."""
        if isinstance(self.wrapped, nn.parallel.DistributedDataParallel) and not last:
            return self.wrapped.no_sync()
        return contextlib.nullcontext()

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The base's precision, where weights are float32."""
        dtype = AUTOCAST.get(self.base.precision)
        if dtype is None or self.masters is not None:
            return contextlib.nullcontext()
        return torch.autocast("cpu", dtype)

    def loss(self, given: Batch) -> Tensor:
        """This microbatch's share of the loss."""
        with self.autocast():
            if self.base.library is None:
                result: Tensor = self.wrapped(**given)
                return result
            return self.library_loss(given) / self.base.accumulation

    def library_loss(self, given: Batch) -> Tensor:
        """Llama and Qwen shift the labels themselves; for GPT-2 it is done here."""
        if self.base.library == "gpt2":
            logits = self.wrapped(input_ids=given["ids"]).logits
            return F.cross_entropy(logits.flatten(0, 1).float(), given["labels"].flatten())
        loss: Tensor = self.wrapped(input_ids=given["ids"], labels=given["ids"]).loss
        return loss

    def backward(self, loss: Tensor) -> None:
        """Gradients, scaled under a scaler."""
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def accumulate(self) -> None:
        """Add to the master weights' gradients, where there are any."""
        if self.masters:
            self.masters.accumulate()

    def reduce(self) -> None:
        """Add up over processes what each has a share of."""
        for name, weight in self.model.named_parameters():
            self.reduce_one(name, weight)

    def reduce_one(self, name: str, weight: nn.Parameter) -> None:
        """One weight's gradient."""
        if weight.grad is None or self.base.reduction in ("none", "ddp", "fsdp"):
            return
        if self.base.reduction == "sequence" and name not in norm_like(self.model):
            return
        dist.all_reduce(weight.grad)
        if self.base.reduction == "mean":
            weight.grad.div_(self.world)

    def unscale(self) -> None:
        """Gradients without the loss scale."""
        if self.scaler:
            self.scaler.unscale_(self.optimizer)

    def clip(self) -> None:
        """Scale all gradients down to the largest norm allowed."""
        if self.base.model.parallel == "tensor":
            self.clip_shards()
        else:
            nn.utils.clip_grad_norm_(self.weights(), self.max_norm)

    def clip_shards(self) -> None:
        """The same where some weights are spread over processes: what all have counts once."""
        norm = (self.square_sum(sharded=True) + self.square_sum(sharded=False)).sqrt()
        torch.nn.utils.clip_grads_with_norm_(self.weights(), self.max_norm, norm)

    def square_sum(self, *, sharded: bool) -> Tensor:
        """Sum of squares of gradients: over processes for shards, once for what all have."""
        named = [w for name, w in self.named_weights() if is_sharded(name) == sharded]
        own = torch.stack([w.grad.square().sum() for w in named if w.grad is not None]).sum()
        return summed(own) if sharded else own

    def update(self) -> None:
        """One optimizer step."""
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.masters:
            self.masters.copy_out()

    def advance(self) -> None:
        """The next step's learning rate."""
        self.schedule.step()

    def clear(self) -> None:
        """No gradients are left."""
        self.optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)

    def close(self) -> None:
        """Nothing outlives it."""

    # ---- checkpoints

    def save(self, path: Path) -> None:
        """All that going on needs."""
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "data_step": self.data_step,
                "random": torch.get_rng_state(),
            },
            path,
        )

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint."""
        saved: dict[str, Any] = torch.load(path, weights_only=True)
        self.restore_weights(saved)
        self.restore_optimizer(saved)
        self.schedule.load_state_dict(saved["schedule"])
        self.data_step = saved["data_step"]
        torch.set_rng_state(saved["random"])

    def restore_weights(self, saved: dict[str, Any]) -> None:
        """The model's."""
        self.model.load_state_dict(saved["model"])

    def restore_optimizer(self, saved: dict[str, Any]) -> None:
        """Moments, step counts and settings."""
        self.optimizer.load_state_dict(saved["optimizer"])


def make_trainer(base: Base, *, seed: int = 0) -> Any:
    """A ``Trainer``, or a ``ReferenceTrainer`` where the base is one's configuration."""
    if base.sections is None:
        return Trainer(base, seed=seed)
    from bugzoo.reference_trainer import ReferenceTrainer

    return ReferenceTrainer(base, seed=seed)


def fully_shard_blocks(model: Transformer) -> None:
    """Every block a unit of FSDP2, what is left another."""
    from torch.distributed.fsdp import fully_shard

    for block in model.layers:
        fully_shard(block)
    fully_shard(model)


def make_model(base: Base) -> nn.Module:
    """The base's model with its seeded weights; a tensor-parallel one has its part of them."""
    if base.sections is not None:
        from bugzoo.reference_trainer import stage_on_meta

        return stage_on_meta(base)
    if base.library is not None:
        return trained_like(MODELS[base.library]())
    if base.model.parallel != "tensor":
        return Transformer(base.model)
    from dataclasses import replace

    whole = Transformer(replace(base.model, parallel=None))
    part = Transformer(base.model)
    load_shards(part, whole)
    return part


@contextlib.contextmanager
def processes(base: Base) -> Iterator[None]:
    """The process group of a base that has several, as torchrun started them."""
    if base.ranks == 1 or dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo")
    try:
        yield
        dist.barrier()  # a process that leaves early takes the other's connection away
    finally:
        dist.destroy_process_group()
