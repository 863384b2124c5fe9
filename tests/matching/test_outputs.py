"""Norms of ones under other names, in another order: told apart by what they return, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

from trueup import Tracer  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.importers import open_trace  # noqa: E402
from trueup.matching.bridge import Bridge, build_bridge  # noqa: E402

SIZE = 12


class Heads(nn.Module):
    """Norms over queries and keys, both of ones and of one size; names and order of definition are given."""

    def __init__(self, names: tuple[str, str], weights: tuple[str, str], *, kind: type[nn.Module]) -> None:
        super().__init__()
        self.names, self.weights = names, weights
        for name in sorted(names):
            setattr(self, name, kind(SIZE))
        for name in weights:
            setattr(self, name, nn.Linear(SIZE, SIZE, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        q, k = (getattr(self, weight)(x) for weight in self.weights)
        return getattr(self, self.names[0])(q) * getattr(self, self.names[1])(k)


class Model(nn.Module):
    """Two layers of it below a name of its own."""

    def __init__(self, stack: str, names: tuple[str, str], weights: tuple[str, str], *, equal: bool,
                 kind: type[nn.Module] = nn.RMSNorm) -> None:  # fmt: skip
        super().__init__()
        self.stack = stack
        setattr(self, stack, nn.ModuleList(Heads(names, weights, kind=kind) for _ in range(2)))
        drawn = torch.Generator().manual_seed(4)
        for layer in getattr(self, stack):
            first, second = (torch.randn(SIZE, SIZE, generator=drawn) for _ in range(2))
            for name, values in zip(weights, (first, first.flip(0) if equal else second), strict=True):
                layer.get_parameter(f"{name}.weight").data.copy_(values)

    def forward(self, x: Tensor) -> Tensor:
        for layer in getattr(self, self.stack):
            x = layer(x)
        return x


def trained(path: Path, model: nn.Module) -> Path:
    """Two steps on fixed numbers."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    drawn = torch.Generator().manual_seed(9)
    with Tracer(path, framework="torch", level="mix", task="tensor", steps="0-1"):
        for _ in range(2):
            model(torch.randn(3, SIZE, generator=drawn)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


def bridged(target: Path, reference: Path) -> Bridge:
    traces = open_trace(target), open_trace(reference)
    return build_bridge(*traces, (traces[0].read(0, 0), traces[1].read(0, 0)))


@pytest.mark.parametrize("kind", [nn.RMSNorm, nn.LayerNorm])
def test_the_norms_are_told_apart(tmp_path: Path, kind: type[nn.Module]) -> None:
    """``b`` is over queries here, ``qn`` there: by name and place the other way round, or neither."""
    target = trained(tmp_path / "t", Model("blocks", ("b", "a"), ("one", "two"), equal=False, kind=kind))
    reference = trained(tmp_path / "r", Model("layers", ("qn", "rn"), ("wq", "wk"), equal=False, kind=kind))
    bridge = bridged(target, reference)
    assert (bridge.weights.left_target, bridge.weights.left_source) == ([], [])
    pairs = bridge.modules.reference_of()
    assert {pairs[f"blocks.{n}.b"] for n in range(2)} == {f"layers.{n}.qn" for n in range(2)}
    assert {pairs[f"blocks.{n}.a"] for n in range(2)} == {f"layers.{n}.rn" for n in range(2)}
    assert compare(target, reference).exit_code == 0


def test_returns_that_say_nothing_leave_them_undecided(tmp_path: Path) -> None:
    """The keys are the queries in another order of channels: both norms return the same numbers but for the
    order, which no layout keeps."""
    target = trained(tmp_path / "t", Model("blocks", ("b", "a"), ("one", "two"), equal=True))
    reference = trained(tmp_path / "r", Model("layers", ("qn", "rn"), ("wq", "wk"), equal=True))
    bridge = bridged(target, reference)
    assert len(bridge.weights.left_target) == len(bridge.weights.left_source) == 4


def test_a_norm_far_from_both_is_paired_with_none(tmp_path: Path) -> None:
    """What one program does to one of its norms moves what it returns away from its counterpart."""

    class Wide(nn.RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 3.0

    model = Model("blocks", ("b", "a"), ("one", "two"), equal=False)
    for layer in model.blocks:
        layer.a = Wide(SIZE)
    target = trained(tmp_path / "t", model)
    reference = trained(tmp_path / "r", Model("layers", ("qn", "rn"), ("wq", "wk"), equal=False))
    pairs = bridged(target, reference).modules.reference_of()
    assert pairs.get("blocks.0.a") != "layers.0.qn"
    assert pairs["blocks.0.b"] == "layers.0.qn"
