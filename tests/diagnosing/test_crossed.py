"""Weights of another implementation in another order than what stands beside them; an order kept is none."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402

from trueup import Tracer  # noqa: E402
from trueup.diagnosing.stages.crossed import Crossed, crossed  # noqa: E402
from trueup.importers import open_trace  # noqa: E402
from trueup.matching.bridge import build_bridge  # noqa: E402
from trueup.types.codes import WeightsCode as Weights  # noqa: E402

SIZE, EXPERTS = 6, 3


class Apart(nn.Module):
    """Projections of their own, experts behind a router."""

    def __init__(self) -> None:
        super().__init__()
        for name in "qkv":
            setattr(self, name, nn.Linear(SIZE, SIZE))
        self.router = nn.Linear(SIZE, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.q(x) * self.k(x) + self.v(x)
        shares = self.router(x).softmax(-1)
        return x + sum(shares[:, n : n + 1] * expert(x) for n, expert in enumerate(self.experts))


class Fused(nn.Module):
    """The same with one projection, its rows and experts in a given order."""

    def __init__(
        self, of: Apart, *, weight: str, bias: str, experts: tuple[int, ...], router: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.wqkv = nn.Linear(SIZE, 3 * SIZE)
        self.gate = nn.Linear(SIZE, EXPERTS, bias=False)
        self.mlps = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(EXPERTS))
        self.rows = weight
        with torch.no_grad():
            self.wqkv.weight.copy_(torch.cat([getattr(of, name).weight for name in weight]))
            self.wqkv.bias.copy_(torch.cat([getattr(of, name).bias for name in bias]))
            self.gate.weight.copy_(of.router.weight[list(router)])
            for mlp, number in zip(self.mlps, experts, strict=True):
                mlp.load_state_dict(of.experts[number].state_dict())

    def forward(self, x: Tensor) -> Tensor:
        parts = dict(zip(self.rows, self.wqkv(x).chunk(3, -1), strict=True))
        x = x + parts["q"] * parts["k"] + parts["v"]
        shares = self.gate(x).softmax(-1)
        return x + sum(shares[:, n : n + 1] * mlp(x) for n, mlp in enumerate(self.mlps))


class Stack(nn.Module):
    def __init__(self, name: str, layers: list[nn.Module]) -> None:
        super().__init__()
        self.name = name
        setattr(self, name, nn.ModuleList(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in getattr(self, self.name):
            x = layer(x)
        return x


def captured(path: Path, model: nn.Module, task: str = "tensor") -> Path:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Tracer(path, framework="torch", level="L0", task=task, steps="0"):
        model(torch.randn(4, SIZE, generator=torch.Generator().manual_seed(2))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return path


SAME = {"weight": "qkv", "bias": "qkv", "experts": (0, 1, 2), "router": (0, 1, 2)}


def found(folder: Path, *changes: dict[str, object], task: str = "tensor") -> list[Crossed]:
    """Of a port whose layers are made with these changes."""
    torch.manual_seed(11)
    layers = [Apart() for _ in changes]
    port = [Fused(layer, **{**SAME, **change}) for layer, change in zip(layers, changes, strict=True)]
    target = captured(folder / "t", Stack("blocks", list(port)), task)
    reference = captured(folder / "r", Stack("layers", list(layers)), task)
    traces = open_trace(target), open_trace(reference)
    bridge = build_bridge(*traces, (traces[0].read(0, 0), traces[1].read(0, 0)))
    return crossed(bridge, *traces, 0)


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"weight": "vqk", "bias": "vqk"},
        {"experts": (1, 0, 2), "router": (1, 0, 2)},
        {"experts": (2, 0, 1), "router": (2, 0, 1)},
    ],
)
def test_an_order_of_its_own_is_no_difference(tmp_path: Path, change: dict[str, object], task: str) -> None:
    assert found(tmp_path, {}, change, task=task) == []


@pytest.mark.parametrize("bias", ["qvk", "kqv", "vkq"])
def test_a_bias_in_another_order_than_its_matrix(tmp_path: Path, bias: str) -> None:
    (one,) = found(tmp_path, {}, {"bias": bias})
    assert one.headline.code is Weights.ROWS_UNLIKE
    assert one.weights == {"blocks.1.wqkv": "blocks.1.wqkv.bias"}
    assert {row.code for row in one.evidence} == {Weights.ROW_SOURCES}
    orders = [list(row.place("sources")) for row in one.evidence]
    assert orders == [[f"layers.1.{n}.bias" for n in bias], [f"layers.1.{n}.weight" for n in "qkv"]]
    assert one.explains("blocks.1") == "blocks.1.wqkv.bias"
    assert one.explains("blocks.0") is one.explains("") is one.explains("blocks.1.gate") is None


def test_both_in_orders_of_their_own(tmp_path: Path) -> None:
    (one,) = found(tmp_path, {"weight": "vqk", "bias": "qkv"})
    assert one.headline.code is Weights.ROWS_UNLIKE


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("experts", [(1, 0, 2), (0, 2, 1), (2, 0, 1)])
def test_experts_exchanged_in_one_layer(tmp_path: Path, experts: tuple[int, ...], task: str) -> None:
    (one,) = found(tmp_path, {}, {"experts": experts}, task=task)
    assert one.headline.code is Weights.EXCHANGED
    moved = [n for n in range(EXPERTS) if experts[n] != n]
    assert list(one.weights) == [f"blocks.1.mlps.{n}" for n in moved]
    (told,) = one.evidence
    assert told.code is Weights.OTHER_NUMBERS
    assert list(told.place("numbers")) == [f"blocks.1.mlps.{n}: {experts[n]}" for n in moved]
    assert one.explains(f"blocks.1.mlps.{moved[0]}") is not None
    assert one.explains("blocks.1") is not None
    assert one.explains("blocks.0") is None


def test_experts_numbered_otherwise_in_every_layer_are_a_way_of_numbering(tmp_path: Path) -> None:
    """Nothing but what they compute tells whether the router goes with them."""
    change = {"experts": (2, 0, 1)}
    assert found(tmp_path, change, change) == []


def test_layers_exchanged(tmp_path: Path) -> None:
    torch.manual_seed(11)
    layers = [Apart() for _ in range(3)]
    port = [Fused(layers[n], **SAME) for n in (0, 2, 1)]
    target = captured(tmp_path / "t", Stack("blocks", list(port)))
    reference = captured(tmp_path / "r", Stack("layers", list(layers)))
    traces = open_trace(target), open_trace(reference)
    bridge = build_bridge(*traces, (traces[0].read(0, 0), traces[1].read(0, 0)))
    (one,) = crossed(bridge, *traces, 0)
    assert (one.headline.code, list(one.weights)) == (Weights.EXCHANGED, ["blocks.1", "blocks.2"])
