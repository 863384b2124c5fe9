"""Projections put together in one run alone, beside weights of equal names: the same model, or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import trueup  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.diagnosing.pipeline import diagnose  # noqa: E402
from trueup.matching.report import match_traces  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402

WIDTH, INNER, LAYERS = 12, 20, 3
X = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1))


class Gated(nn.Module):
    """Two projections and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Fused(nn.Module):
    """The two in one."""

    def __init__(self, whole: Gated, *, swapped: bool) -> None:
        super().__init__()
        self.gate_up, self.down_proj = nn.Linear(WIDTH, 2 * INNER, bias=False), whole.down_proj
        with torch.no_grad():
            self.gate_up.weight.copy_(torch.cat([whole.gate_proj.weight, whole.up_proj.weight]))
        self.swapped = swapped

    def forward(self, x: Tensor) -> Any:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down_proj(F.silu(up) * gate if self.swapped else F.silu(gate) * up)


class Turned(nn.Module):
    """A projection that keeps its weight the other way round, under the same name."""

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(whole.weight.detach().t().clone())

    def forward(self, x: Tensor) -> Any:
        return x @ self.weight


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_in, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Gated()

    def forward(self, x: Tensor) -> Any:
        x = x + self.mix(self.norm_in(x))
        return x + self.mlp(self.norm(x))


def trained(folder: Path, kind: str = "plain") -> Path:
    torch.manual_seed(7 if kind == "other weights" else 0)
    torch.set_num_threads(1)
    layers: list[Any] = [Layer() for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    for layer in layers:
        if kind in ("fused", "swapped", "other weights"):
            layer.mlp = Fused(layer.mlp, swapped=kind == "swapped")
        elif kind == "turned":
            layer.mlp.gate_proj = Turned(layer.mlp.gate_proj)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with trueup.Tracer(folder, level="L0", steps="0-1", task="tensor"):
        for _ in range(2):
            model(X).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.parametrize("kind", ["fused", "turned"])
def test_most_names_agree_and_the_rest_are_the_same_values(kind: str, plain: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", kind)
    for target, reference in ((run, plain), (plain, run)):
        assert compare(target, reference).verdict.outcome is Outcome.AGREE
        assert diagnose(target, reference, output=tmp_path / "out").outcome is Outcome.AGREE


def test_each_fused_weight_is_made_of_those_of_its_layer(plain: Path, tmp_path: Path) -> None:
    report = match_traces(Trace(trained(tmp_path / "run", "fused")), Trace(plain))
    fused = {line.target: line.reference for line in report.weights if "gate_up" in (line.target or "")}
    assert len(fused) == LAYERS
    for target, reference in fused.items():
        assert str(target).split(".")[0] == str(reference).split(".")[0]


def test_parts_taken_in_the_wrong_order_differ(plain: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "swapped")
    assert compare(run, plain).exit_code == 1
    diagnosis = diagnose(run, plain, output=tmp_path / "out")
    assert diagnosis.exit_code == 1
    assert (diagnosis.findings[0].module or "").endswith("mlp")


def test_other_weights_in_other_pieces_never_agree(plain: Path, tmp_path: Path) -> None:
    """Nor is a weight paired with one of another layer and another shape."""
    run = trained(tmp_path / "run", "other weights")
    assert compare(run, plain).verdict.outcome is not Outcome.AGREE
    report = match_traces(Trace(run), Trace(plain))
    for line in report.weights:
        if line.target is not None and line.reference is not None:
            assert line.target.split(".")[0] == line.reference.split(".")[0]
