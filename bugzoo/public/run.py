"""One training program in pieces: each method is something that people get wrong, and may be replaced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Batch = dict[str, Any]
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Run:
    """Model, batches, loss and update of one program. A planted entry changes attributes or methods of it
    before ``train`` builds anything, or adds an edit of the model."""

    precision = "fp32"
    """``fp32``, ``bf16`` (autocast), ``fp16`` (autocast with a scaler), or ``master`` (bfloat16 weights)"""
    parallel = "none"
    """``none``, ``ddp`` or ``fsdp``"""
    accumulation = 1
    rows = 4
    """of a step, over all microbatches and processes"""
    learning_rate = 3e-3
    betas = (0.9, 0.95)
    eps = 1e-8
    weight_decay = 0.1
    max_norm = 1.0
    warmup = 4
    optimizer_options: dict[str, Any]
    ddp_options: dict[str, Any]

    def __init__(self) -> None:
        self.rank, self.world = 0, 1
        self.optimizer_options, self.ddp_options = {}, {}
        self.edits: list[Callable[[Any], None]] = []
        self.model: Any = None
        self.wrapped: Any = None

    # ---- what it is made of

    def make_model(self) -> nn.Module:
        """The seeded model."""
        raise NotImplementedError

    def whole_batch(self, step: int) -> Batch:
        """All rows of a step."""
        raise NotImplementedError

    def loss(self, batch: Batch) -> Tensor:
        """This microbatch's share of the loss; ``batch["items"]`` is what the whole step counts."""
        raise NotImplementedError

    def count(self, batch: Batch) -> Tensor:
        """Items (tokens that have a label, rows, ...) that the mean of the loss is taken over."""
        return torch.tensor(next(iter(batch.values())).shape[0])

    def batches(self, step: int) -> list[Batch]:
        """Microbatches of this process: row r belongs to microbatch r % accumulation, then to its process."""
        whole = self.whole_batch(step)
        items = self.share_of_items(self.count(whole))
        pick = [slice(self.rank * self.accumulation + m, None, self.accumulation * self.world)
                for m in range(self.accumulation)]  # fmt: skip
        return [{name: x[one].contiguous() for name, x in whole.items()} | {"items": items} for one in pick]

    def share_of_items(self, items: Tensor) -> Tensor:
        """Gradients are averaged over processes: each divides by its share of all items."""
        return items / self.world

    def wrap(self, model: nn.Module) -> nn.Module:
        """What the loss calls."""
        if self.parallel == "ddp" and self.world > 1:
            return nn.parallel.DistributedDataParallel(model, **self.ddp_options)
        if self.parallel == "fsdp" and self.world > 1:
            self.shard(model)
        return model

    def units(self, model: nn.Module) -> list[nn.Module]:
        """Modules that FSDP2 shards one by one."""
        return list(model.model.layers)

    def shard_options(self) -> dict[str, Any]:
        """Of ``fully_shard``."""
        return {}

    def shard(self, model: nn.Module) -> None:
        """FSDP2."""
        from torch.distributed.fsdp import fully_shard

        for unit in self.units(model):
            fully_shard(unit, **self.shard_options())
        fully_shard(model, **self.shard_options())

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups: matrices decay, norms and biases do not."""
        weights = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        decayed = [p for n, p in weights if self.decays(n, p)]
        others = [p for n, p in weights if not self.decays(n, p)]
        return [
            {"params": decayed, "weight_decay": self.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]

    def decays(self, name: str, weight: Tensor) -> bool:
        """Whether weight decay applies."""
        return weight.dim() >= 2

    def make_optimizer(self) -> torch.optim.Optimizer:
        """AdamW."""
        options: dict[str, Any] = {"lr": self.learning_rate, "betas": self.betas, "eps": self.eps}
        return torch.optim.AdamW(self.groups(), **options, **self.optimizer_options)

    def make_schedule(self) -> torch.optim.lr_scheduler.LRScheduler:
        """Linear warm-up."""
        return torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / self.warmup)
        )

    def make_scaler(self) -> torch.amp.GradScaler:
        """Off unless in fp16."""
        return torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=self.precision == "fp16")

    # ---- a step

    def build(self) -> None:
        """Everything, once."""
        torch.manual_seed(0)
        self.model = self.make_model()
        for edit in self.edits:
            edit(self.model)
        torch.manual_seed(100 + self.rank)
        self.wrapped = self.wrap(self.model)
        self.optimizer = self.make_optimizer()
        self.schedule = self.make_schedule()
        self.scaler = self.make_scaler()

    def train(self, steps: int) -> None:
        """All steps; the first process prints."""
        self.build()
        for step in range(steps):
            loss = self.step(step)
            if self.rank == 0:
                print(f"step {step} loss {loss:.6f}", flush=True)

    def step(self, step: int) -> float:
        """Forward and backward of every microbatch, clip, update."""
        total = 0.0
        batches = self.batches(step)
        for index, batch in enumerate(batches):
            with self.synchronised(index, len(batches)):
                with self.autocast():
                    loss = self.loss(batch)
                self.backward(loss)
            total += loss.item()
        self.clip()
        self.update()
        self.advance()
        self.clear()
        return total

    def synchronised(self, index: int, number: int) -> contextlib.AbstractContextManager[Any]:
        """DistributedDataParallel exchanges gradients with the last microbatch."""
        if isinstance(self.wrapped, nn.parallel.DistributedDataParallel) and index != number - 1:
            return self.wrapped.no_sync()
        return contextlib.nullcontext()

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The program's precision."""
        dtype = AUTOCAST.get(self.precision)
        return torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Gradients, scaled under a scaler."""
        self.scaler.scale(loss).backward()

    def weights(self) -> list[nn.Parameter]:
        """All that the optimizer updates."""
        return [weight for group in self.optimizer.param_groups for weight in group["params"]]

    def clip(self) -> None:
        """By the norm of all unscaled gradients."""
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.weights(), self.max_norm)

    def update(self) -> None:
        """One optimizer step."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def advance(self) -> None:
        """The next step's learning rate."""
        self.schedule.step()

    def clear(self) -> None:
        """No gradients are left."""
        self.optimizer.zero_grad()


def gathered_sum(value: Tensor) -> Tensor:
    """Over processes."""
    if dist.is_initialized():
        value = value.clone()
        dist.all_reduce(value)
    return value
