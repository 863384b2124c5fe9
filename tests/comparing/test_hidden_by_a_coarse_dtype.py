"""What bfloat16 hides and the trace shows all the same: another constant, a router in another dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueup
from trueup.comparing.run import compare
from trueup.types.codes import VerdictCode
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict

pytestmark = pytest.mark.torch

WIDTH = 32


class Block(nn.Module):
    """A norm and a product, in bfloat16; ``spread`` serves its initial weights alone."""

    def __init__(self, *, eps: float, spread: float, noise: float) -> None:
        super().__init__()
        self.noise = nn.Buffer(torch.full((WIDTH,), 1 + noise), persistent=False)
        self.norm, self.up = nn.LayerNorm(WIDTH, eps=eps), nn.Linear(WIDTH, WIDTH)
        self.spread = spread
        self.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.up(self.norm(x))
        return hidden * self.noise


def train(
    folder: Path,
    model: Callable[[], nn.Module],
    *,
    evaluates: bool = False,
    values: Sequence[str] = ("configuration",),
) -> Path:
    torch.manual_seed(0)
    net = model().train(not evaluates)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(8, WIDTH).to(torch.bfloat16)
    with trueup.Tracer(folder, level="L0", steps="0", store_values_of=list(values)):
        net(x).float().square().mean().backward()
        optimizer.step()
    return folder


def verdict(folder: Path, target: Callable[[], nn.Module], reference: Callable[[], nn.Module]) -> Verdict:
    return compare(train(folder / "target", target), train(folder / "reference", reference)).verdict


def block(*, eps: float = 1e-5, spread: float = 0.02, noise: float = 0.0) -> Callable[[], nn.Module]:
    return lambda: Block(eps=eps, spread=spread, noise=noise)


@pytest.mark.parametrize("eps", [1e-3, 4e-3])
def test_another_constant_of_a_module_that_makes_other_bits_of_the_same(eps: float, tmp_path: Path) -> None:
    found = verdict(tmp_path, block(eps=eps), block())
    assert found.headline.code is VerdictCode.ARGUMENT_DIFFERS
    assert (found.headline.place("name"), found.owner) == ("eps", "norm")


def of_root(eps: float | None) -> nn.Module:
    """A norm by the root of the mean square, before the block; None: eps of the dtype it computes in."""
    return nn.Sequential(nn.RMSNorm(WIDTH, eps=eps).to(torch.bfloat16), block()())


@pytest.mark.parametrize("eps", [None, 4e-3])
def test_a_constant_that_one_module_leaves_to_the_framework(eps: float | None, tmp_path: Path) -> None:
    found = verdict(tmp_path, lambda: of_root(eps), lambda: of_root(1e-3 if eps is None else None))
    assert found.headline.code is VerdictCode.ARGUMENT_DIFFERS
    assert (found.headline.place("name"), found.owner) == ("eps", "0")


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (block(eps=1.0001e-5), "both make the same bits"),
        (block(spread=0.01), "the constant takes no part"),
        (block(spread=0.01, noise=2**-9), "other bits are made elsewhere"),
    ],
)
def test_a_constant_that_changes_no_bits_is_no_difference(
    target: Callable[[], nn.Module], why: str, tmp_path: Path
) -> None:
    assert verdict(tmp_path, target, block()).outcome is Outcome.AGREE, why


# -- a router ------------------------------------------


class Router(nn.Module):
    """Logits, weights and choices of 2 of 16 experts; computed in one dtype, its logits given in another."""

    def __init__(self, computes: torch.dtype, gives: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, WIDTH) / WIDTH**0.5)
        self.computes, self.gives = computes, gives

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = F.linear(x.to(self.computes), self.weight.to(self.computes))
        weights, chosen = logits.float().softmax(-1).topk(2)
        return logits.to(self.gives), weights, chosen


class Routed(nn.Module):
    def __init__(self, computes: torch.dtype, gives: torch.dtype) -> None:
        super().__init__()
        self.router = Router(computes, gives)
        self.experts = nn.Parameter((torch.randn(16, WIDTH) / WIDTH**0.5).to(torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        _, weights, chosen = self.router(x)
        return (self.experts[chosen] * weights[..., None].to(x.dtype)).sum(-2) + x


def routed(computes: torch.dtype, gives: torch.dtype) -> Callable[[], nn.Module]:
    return lambda: Routed(computes, gives)


@pytest.mark.parametrize("side", ["target", "reference"])
def test_a_router_in_bfloat16_is_named(side: str, tmp_path: Path) -> None:
    lower, base = routed(torch.bfloat16, torch.bfloat16), routed(torch.float32, torch.float32)
    found = verdict(tmp_path, *((lower, base) if side == "target" else (base, lower)))
    assert found.headline.code is VerdictCode.COMPUTES_IN
    assert found.headline.place("functions") == ("Router",)
    assert (found.headline.place(side), found.owner) == ("bfloat16", "router")


class WholeRouter(Router):
    """All its numbers are given in one dtype."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = F.linear(x.to(self.computes), self.weight.to(self.computes))
        weights, chosen = logits.softmax(-1).topk(2)
        return logits.to(self.gives), weights.to(self.gives), chosen


def whole(computes: torch.dtype, gives: torch.dtype) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        model = Routed(computes, gives)
        model.router.__class__ = WholeRouter
        return model

    return made


@pytest.mark.parametrize(
    ("computes", "code"),
    [(torch.bfloat16, VerdictCode.COMPUTES_IN), (torch.float32, None)],
    ids=["computed in bfloat16", "given in bfloat16"],
)
def test_a_choice_among_numbers_of_which_all_are_in_bfloat16(
    computes: torch.dtype, code: VerdictCode | None, tmp_path: Path
) -> None:
    values = ["module", "configuration"]
    runs = (
        train(tmp_path / "target", whole(computes, torch.bfloat16), values=values),
        train(tmp_path / "reference", whole(torch.float32, torch.float32), values=values),
    )
    found = compare(*runs).verdict
    if code is None:
        assert found.outcome is Outcome.AGREE
    else:
        assert (found.headline.code, found.owner) == (code, "router")


def test_logits_that_are_only_given_in_another_dtype_make_no_difference(tmp_path: Path) -> None:
    given, base = routed(torch.float32, torch.bfloat16), routed(torch.float32, torch.float32)
    assert verdict(tmp_path, given, base).outcome is Outcome.AGREE
