"""Training programs that say nothing of their layout: plain, DDP, FSDP2, and a tensor-parallel block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import trueup

ROWS, WIDTH, INNER = 8, 12, 16


class Block(nn.Module):
    """x + down(gelu(up(x))), of which a rank may have a part of the inner width; gated, ``up`` is two."""

    def __init__(self, inner: int, *, gated: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, inner * (1 + gated)), nn.Linear(inner, WIDTH, bias=False)
        self.shared, self.gated = inner < INNER, gated

    def forward(self, x: Tensor) -> Tensor:
        y = Copied.apply(self.norm(x)) if self.shared else self.norm(x)
        y = self.up(y)
        if self.gated:
            gate, y = y.chunk(2, -1)
            y = self.down(torch.nn.functional.gelu(gate) * y)
        else:
            y = self.down(torch.nn.functional.gelu(y))
        return x + (Summed.apply(y) if self.shared else y)


class Moved(nn.Module):
    """As Megatron's embedding under sequence parallelism: ranks have parts, with dims moved."""

    def forward(self, x: Tensor, faulty: bool) -> Tensor:
        rank, size = dist.get_rank(), dist.get_world_size()
        x = x * 1.25 if faulty else x * 1.0
        return x.transpose(0, 1).contiguous().chunk(size, 1)[rank] if size > 1 else x


class Model(nn.Module):
    def __init__(self, inner: int = INNER, *, gated: bool = False) -> None:
        super().__init__()
        self.first, self.last = Block(inner, gated=gated), Block(inner, gated=gated)
        self.moved, self.how = Moved(), ""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if "moved" in self.how:
            self.moved(x, "fault" in self.how)
        return (self.last(self.first(x)) - y).square().mean()


class Stack(nn.Module):
    """Some of the layers of a model, each with its number in the whole, as Megatron's have it."""

    def __init__(self, layers: list[nn.Module], first: int, *, ends: bool) -> None:
        super().__init__()
        self.layers, self.ends = nn.ModuleList(layers), ends
        for number, layer in enumerate(self.layers):
            layer.layer_number = first + number + 1  # type: ignore[assignment]
        self.handed: Tensor | None = None
        """what the stage before gives, in place of ``x``"""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x if self.handed is None else self.handed
        for layer in self.layers:
            x = layer(x)
        return (x - y).square().mean() if self.ends else x


def train_stages(how: str, folder: str, options: dict[str, Any]) -> None:
    """One step of a pipeline of two stages, or of one process that has all its layers."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    layers: list[nn.Module] = [Block(INNER).double() for _ in range(4)]
    if how == "stages wrong norm":
        layers[3].norm.eps = 0.1  # type: ignore[union-attr,assignment]
    x, y = torch.randn(ROWS, 3, WIDTH).double(), torch.randn(ROWS, 3, WIDTH).double()
    each = len(layers) // size
    model = Stack(layers[each * rank : each * (rank + 1)], each * rank, ends=rank == size - 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = trueup.Tracer(folder, **options)
    tracer.start()
    if rank:
        model.handed = torch.empty_like(x)
        dist.recv(model.handed, rank - 1)
        model.handed.requires_grad_()
    output, gradient = model(x, y), None
    if rank < size - 1:
        dist.send(output.detach(), rank + 1)
        gradient = torch.empty_like(output)
        dist.recv(gradient, rank + 1)
    torch.autograd.backward(output, gradient)
    if rank:
        assert model.handed is not None
        assert model.handed.grad is not None
        dist.send(model.handed.grad, rank - 1)
    optimizer.step()
    tracer.close()


class Copied(torch.autograd.Function):
    """The same on all ranks; gradients are summed over them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


class Summed(torch.autograd.Function):
    """The sum over all ranks; gradients go to all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


def train(how: str, folder: str, options: dict[str, Any]) -> None:
    """In this process: one step, and a trace of it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    gated = "gated" in how
    whole: nn.Module = Model(gated=gated).double()
    whole.how = how  # type: ignore[assignment]
    x, y = torch.randn(ROWS, 3, WIDTH).double(), torch.randn(ROWS, 3, WIDTH).double()
    model = whole
    if how.startswith("tensor"):
        model = Model(INNER // size, gated=gated).double()
        model.how = how
        cut(model, whole, rank, size)
        if how.endswith("wrong weight") and rank == 1:
            with torch.no_grad():
                model.last.up.weight[3, 5] += 1e-3  # type: ignore[union-attr,index,operator]
    elif not how.startswith("one"):
        x, y = (one.chunk(size)[rank] for one in (x, y))
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
        model.set_gradient_divide_factor(1.0)  # type: ignore[operator]
        model.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    if how == "ddp marked":  # as Megatron's layers mark weights, also where one rank has all of them
        for parameter in model.parameters():
            mark(parameter, 0)
    if how.startswith("ddp"):
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = trueup.Tracer(folder, **options)
    tracer.start()
    factor = 1.0 / size if how == "fsdp" else 1.0
    for rows, wanted in zip(*(one.chunk(2 if "accumulated" in how else 1) for one in (x, y)), strict=True):
        (model(rows, wanted) * (factor / (2 if "accumulated" in how else 1))).backward()
    if how == "ddp fault" and rank == 1:
        with torch.no_grad():
            parameter = next(model.parameters())
            assert parameter.grad is not None
            parameter.grad.mul_(1.5)
    optimizer.step()
    tracer.close()


def cut(part: nn.Module, whole: nn.Module, rank: int, size: int) -> None:
    """Rows of ``up``, columns of ``down``, marked as Megatron's layers mark theirs."""
    weights = dict(whole.named_parameters())
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            dim = 1 if name.endswith("down.weight") else 0
            if ".up." in name or ".down." in name:
                blocks = weights[name].chunk(1 + (".up." in name and part.first.gated), dim)  # type: ignore[union-attr]
                parameter.copy_(torch.cat([block.chunk(size, dim)[rank] for block in blocks], dim))
                mark(parameter, dim)
            else:
                parameter.copy_(weights[name])


def mark(parameter: nn.Parameter, dim: int) -> None:
    """As Megatron's layers do."""
    marks = {"tensor_model_parallel": True, "partition_dim": dim, "partition_stride": 1}
    for name, value in marks.items():
        setattr(parameter, name, value)


def traced(how: str, size: int, folder: Path, **options: Any) -> Path:
    """The trace of ``size`` processes."""
    from tests.trainer.worlds import world

    program = "train_stages" if "stages" in how else "train"
    world(size).run(f"tests.merging.programs:{program}", how, str(folder), options)
    return folder
