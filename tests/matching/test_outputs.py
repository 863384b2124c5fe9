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


def shifted(model: Model, names: tuple[str, ...]) -> Model:
    """Some of its norms add something, which moves what they return far away."""

    class Shifted(nn.RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 3.0

    for layer in getattr(model, model.stack):
        for name in names:
            setattr(layer, name, Shifted(SIZE))
    return model


@pytest.mark.parametrize(("names", "expected"), [(("a",), "layers.0.rn"), (("a", "b"), None)])
def test_a_norm_that_returns_something_else(
    tmp_path: Path, names: tuple[str, ...], expected: str | None
) -> None:
    """It is the one left where the other one is known; two such norms stay undecided."""
    model = shifted(Model("blocks", ("b", "a"), ("one", "two"), equal=False), names)
    target = trained(tmp_path / "t", model)
    reference = trained(tmp_path / "r", Model("layers", ("qn", "rn"), ("wq", "wk"), equal=False))
    assert bridged(target, reference).modules.reference_of().get("blocks.0.a") == expected


class Once(Model):
    """A model whose keys go through the norm of its queries."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in getattr(self, self.stack):
            norm = getattr(layer, layer.names[0])
            x = norm(getattr(layer, layer.weights[0])(x)) * norm(getattr(layer, layer.weights[1])(x))
        return x


def test_a_norm_that_is_never_called_is_the_one_left(tmp_path: Path) -> None:
    target = trained(tmp_path / "t", Once("blocks", ("b", "a"), ("one", "two"), equal=False))
    reference = trained(tmp_path / "r", Model("layers", ("qn", "rn"), ("wq", "wk"), equal=False))
    atoms = {atom.targets: atom.sources for atom in bridged(target, reference).weights.atoms}
    assert atoms["blocks.0.a.weight",] == ("layers.0.rn.weight",)


class Scaled(nn.Module):
    """An embedding, a factor between it and the layers, and tables that calls of one function make twice."""

    def __init__(self, names: tuple[str, str, str], *, factor: float, base: float) -> None:
        super().__init__()
        self.names, self.factor, self.base = names, factor, base
        drawn = torch.Generator().manual_seed(3)
        for name, kind in zip(names, (nn.Embedding, nn.Linear, nn.Linear), strict=True):
            module = kind(9, SIZE) if kind is nn.Embedding else kind(SIZE, SIZE, bias=False)
            module.weight.data = torch.randn(module.weight.shape, generator=drawn)
            setattr(self, name, module)

    def forward(self, tokens: Tensor) -> Tensor:
        embedding, first, second = (getattr(self, name) for name in self.names)
        h = embedding(tokens)
        h = h if self.factor == 1 else h * self.factor
        x, y = first(h), second(h)
        for _ in range(2):
            angles = torch.arange(SIZE) / self.base
            x, y = x * angles.cos(), y * angles.cos()
        return x + y


def stepped(path: Path, model: nn.Module) -> Path:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Tracer(path, framework="torch", level="mix", task="tensor", steps="0"):
        model(torch.arange(9)).square().mean().backward()
        optimizer.step()
    return path


PORT, OWN = ("tok", "a", "b"), ("embedding", "wq", "wk")


def test_a_factor_left_out_before_the_first_layer_is_seen_there(tmp_path: Path) -> None:
    """By content the first layer is given what the reference's embedding returns."""
    target = stepped(tmp_path / "t", Scaled(PORT, factor=1, base=7))
    reference = stepped(tmp_path / "r", Scaled(OWN, factor=5.5, base=7))
    assert compare(target, reference).summary["verdict"]["where"].startswith("a · input.0")


def test_tables_made_twice_are_a_pair_each(tmp_path: Path) -> None:
    target = stepped(tmp_path / "t", Scaled(PORT, factor=5.5, base=7))
    reference = stepped(tmp_path / "r", Scaled(OWN, factor=5.5, base=2))
    verdict = compare(target, reference).summary["verdict"]
    assert verdict["headline"].startswith("Argument 1 of Tensor.div differs in the root module: 7")
