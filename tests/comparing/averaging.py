"""A small program that keeps an average of its weights beside the model it trains, in the ways that programs
do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import trueup


@dataclass(frozen=True, kw_only=True)
class Program:
    """What one run does otherwise."""

    how: str = "loop"
    decay: float = 0.9
    before_update: bool = False
    each_microbatch: bool = False
    buffers: bool = True
    dtype: torch.dtype = torch.float32
    average_in: torch.dtype | None = None
    num_copies: int = 1
    perturbed: float = 0.0
    """relative noise of the batches"""
    rate: float = 1e-2
    every: int = 1
    """steps from one average to the next"""
    steps: str = "0-1"
    values: bool = False
    warm: bool = False
    """the first average copies the weights"""
    own_updates: bool = False
    """no optimizer of the framework"""
    called: str = ""
    """in which mode the averaged model is called itself, "" where it is not"""


class Shadow:
    """The usual class: a dict of tensors, new ones at each update."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            self.shadow[name] = self.decay * self.shadow[name] + (1 - self.decay) * p.detach()


def built(dtype: torch.dtype = torch.float32) -> nn.Module:
    """With running statistics."""
    torch.manual_seed(0)
    layers = (nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    return nn.Sequential(*layers).to(dtype)


# In one piece: one branch a way to average.
def averaging(model: nn.Module, program: Program, decay: float) -> Callable[[], None]:
    """What averages the weights as they are when it is called."""
    kind = program.average_in or program.dtype

    def tensors(of: nn.Module) -> list[Tensor]:
        found = of.state_dict().values() if program.buffers else of.parameters()
        return [one for one in found if one.is_floating_point()]

    if program.how == "none":
        return lambda: None
    if program.how == "class":
        shadow = Shadow(model, decay)
        return lambda: shadow.update(model)
    if program.how == "list":
        held = [p.detach().clone() for p in model.parameters()]
        return lambda: torch._foreach_lerp_(held, list(model.parameters()), 1 - decay)
    if program.how == "swa":
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
        if not program.warm:
            averaged.n_averaged += 1
        return lambda: averaged.update_parameters(model)
    ema = copy.deepcopy(model).requires_grad_(False).to(kind)
    if program.how == "frozen":
        return lambda: (ema, None)[1]

    def average() -> None:
        if program.called:
            ema.train(program.called == "train")(torch.sin(torch.arange(64.0)).view(8, 8).to(kind))
        mine, theirs = tensors(ema), [one.detach().to(kind) for one in tensors(model)]
        if program.how == "foreach":
            torch._foreach_lerp_(mine, theirs, 1 - decay)
        for a, b in zip(mine, theirs, strict=True) if program.how != "foreach" else ():
            if program.how == "lerp":
                a.lerp_(b, 1 - decay)
            elif program.how == "data":
                a.data.mul_(decay).add_(b.data, alpha=1 - decay)
            else:
                a.mul_(decay).add_(b, alpha=1 - decay)

    return average


def trained(folder: Path, program: Program, *, num_steps: int = 3) -> list[float]:
    """Losses, then weights as numbers; the run is captured to ``folder``."""
    with trueup.Tracer(
        folder,
        level="L0",
        steps=program.steps,
        **({"store_values_of": ("module", "parameter")} if program.values else {}),
    ):
        return run(program, num_steps=num_steps)


def run(program: Program, *, num_steps: int = 3) -> list[float]:
    """The same, by itself."""
    model = built(program.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), program.rate)
    copies = [averaging(model, program, program.decay**n) for n in range(1, program.num_copies + 1)]
    losses: list[float] = []

    def average(step: int) -> None:
        with torch.no_grad():
            for one in copies if step % program.every == 0 else ():
                one()

    for step in range(num_steps):
        for microbatch in range(2):
            x = torch.randn(32, 8)
            x = x * (1 + program.perturbed * torch.sin(torch.arange(32 * 8.0).view(32, 8)))
            loss = model(x.to(program.dtype)).square().mean()
            loss.backward()
            losses.append(loss.item())
            if program.each_microbatch and microbatch == 0:
                average(step)
        if program.before_update:
            average(step)
        if program.own_updates:
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(program.rate * p.grad)
        else:
            optimizer.step()
        optimizer.zero_grad()
        if not program.before_update:
            average(step)
    return [*losses, *(float(p.detach().double().sum()) for p in model.parameters())]
