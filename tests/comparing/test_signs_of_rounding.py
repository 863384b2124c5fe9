"""Optimizers that take signs: of a gradient that is rounding alone every sign is another, and no fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueup
from trueup.comparing.run import compare
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

pytestmark = pytest.mark.torch


@dataclass(frozen=True, kw_only=True)
class Program:
    """How a small transformer attends and is updated."""

    fused: bool = True
    """queries, keys and values have one bias, a third of which has no gradient in exact arithmetic"""
    eager: bool = False
    update: str = "lion"
    level: str = "L0"
    of_vectors: float = 1.0
    """what the learning rate of biases and norms is multiplied by: a fault"""
    beta: float = 0.99
    digits: int = 2
    """to which a scale outside the model is rounded"""


class Lion(torch.optim.Optimizer):
    def __init__(self, groups: list[dict[str, object]], beta: float) -> None:
        super().__init__(groups, {"lr": 2e-3, "betas": (0.9, beta)})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                update = (state["exp_avg"] * 0.9 + p.grad * 0.1).sign_()
                p.add_(update, alpha=-group["lr"])
                state["exp_avg"].mul_(group["betas"][1]).add_(p.grad, alpha=1 - group["betas"][1])


class Block(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program, self.norm, self.out = program, nn.LayerNorm(24), nn.Linear(24, 24)
        self.of = nn.ModuleList(
            nn.Linear(24, 72 if program.fused else 24) for _ in range(1 if program.fused else 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        parts = self.of[0](h).chunk(3, -1) if self.program.fused else [one(h) for one in self.of]
        q, k, v = (part.view(*part.shape[:2], 3, 8).transpose(1, 2) for part in parts)
        if self.program.eager:
            y = (q @ k.transpose(-1, -2) * 8**-0.5).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


def groups_of(model: nn.Module, program: Program) -> list[dict[str, object]]:
    matrices, vectors = [], []
    for p in model.parameters():
        (matrices if p.ndim > 1 else vectors).append(p)
    rate = {"lr": 2e-3 * program.of_vectors} if program.of_vectors != 1 else {}
    return [{"params": matrices}, {"params": vectors, **rate}]


def train(path: Path, program: Program) -> Path:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(40, 24), Block(program), Block(program), nn.Linear(24, 40))
    optimizer: torch.optim.Optimizer | None = None
    if program.update == "lion":
        optimizer = Lion(groups_of(model, program), program.beta)
    elif program.update == "adam":
        optimizer = torch.optim.AdamW(groups_of(model, program), lr=2e-3, eps=1e-15)
    state = {p: torch.zeros_like(p) for p in model.parameters()}
    draw = torch.Generator().manual_seed(2)
    with trueup.Tracer(path, level=program.level, steps="all"):
        for _ in range(3):
            ids = torch.randint(40, (4, 12), generator=draw)
            F.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten()).backward()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
                continue
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    update = torch.sign(0.9 * state[p] + 0.1 * p.grad)
                    rate = 2e-3 * (program.of_vectors if p.ndim == 1 else 1.0)
                    size = torch.round(p.grad.abs().max() * 100, decimals=program.digits)
                    p.sub_(rate * update + 0 * size)
                    state[p].mul_(program.beta).add_(p.grad, alpha=1 - program.beta)
                    p.grad = None
    return path


Judged = Callable[[Program, Program], Verdict]


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    def verdict(target: Program, reference: Program) -> Verdict:
        return compare(train(tmp_path / "target", target), train(tmp_path / "reference", reference)).verdict

    return verdict


PROGRAMS = {
    f"{update}-{level}-{'fused' if fused else 'apart'}": Program(update=update, level=level, fused=fused)
    for update in ("lion", "adam", "by hand")
    for level in ("L0", "mix")
    for fused in (True, False)
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_signs_of_what_is_rounding_alone_are_no_difference(name: str, judged: Judged) -> None:
    program = PROGRAMS[name]
    verdict = judged(replace(program, eager=True), program)
    assert verdict.outcome is Outcome.AGREE, verdict.headline


@pytest.mark.parametrize("factor", [0.5, 1.5])
@pytest.mark.parametrize("name", PROGRAMS)
def test_another_rate_of_vectors_is_one(name: str, factor: float, judged: Judged) -> None:
    program = PROGRAMS[name]
    verdict = judged(replace(program, eager=True, of_vectors=factor), program)
    assert verdict.outcome is Outcome.DIFFER


@pytest.mark.parametrize("change", [{"beta": 0.95}, {"digits": 1}])
def test_other_arguments_of_functions_are_one(change: dict[str, float], judged: Judged) -> None:
    program = Program(update="by hand", level="mix")
    verdict = judged(replace(program, **change), program)  # type: ignore[arg-type]
    assert verdict.outcome is Outcome.DIFFER
