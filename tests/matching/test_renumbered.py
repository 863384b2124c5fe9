"""A module put between numbered ones: those behind it have other names, their weights the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from trueup import Tracer  # noqa: E402
from trueup.comparing.run import compare  # noqa: E402
from trueup.matching.step import are_renumbered  # noqa: E402
from trueup.store import Trace  # noqa: E402
from trueup.types.status import Outcome  # noqa: E402


def model(between: nn.Module | None, width: int = 8) -> nn.Module:
    first = nn.Linear(6, width)
    inserted = [] if between is None else [between]
    body = nn.Sequential(first, *inserted, nn.LayerNorm(width), nn.GELU(), nn.Linear(width, 5))
    return nn.Sequential(nn.Linear(6, 6), body)


def trained(path: Path, between: nn.Module | None = None, width: int = 8) -> Trace:
    torch.manual_seed(0)
    made = model(between, width)
    optimizer = torch.optim.SGD(made.parameters(), 0.1)
    with Tracer(path, steps="0", task="tensor"):
        for _ in range(2):
            made(torch.ones(3, 6)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return Trace(path)


@pytest.mark.parametrize("between", [nn.Identity(), nn.Dropout(0.0)], ids=["identity", "dropout of nothing"])
def test_what_does_nothing_between_two_layers_is_no_difference(between: nn.Module, tmp_path: Path) -> None:
    target, reference = trained(tmp_path / "target", between), trained(tmp_path / "reference")
    assert are_renumbered(target.read(0, 0), reference.read(0, 0))
    result = compare(target.path, reference.path, output=tmp_path / "out")
    assert result.verdict.outcome is Outcome.AGREE
    frame = result.frame()
    weights = frame.filter(frame["phase"].cast(str) == "param")
    assert set(weights["status"].cast(str)) == {"equal"}


def test_what_does_something_there_is_the_difference(tmp_path: Path) -> None:
    target, reference = trained(tmp_path / "target", nn.Tanh()), trained(tmp_path / "reference")
    verdict = compare(target.path, reference.path, output=tmp_path / "out").verdict
    assert verdict.outcome is Outcome.DIFFER
    assert verdict.where is not None
    assert verdict.where.startswith("1.")


def test_another_width_is_no_other_number(tmp_path: Path) -> None:
    """Names of weights of two shapes, but nothing moved."""
    target, reference = trained(tmp_path / "target", width=12), trained(tmp_path / "reference")
    assert not are_renumbered(target.read(0, 0), reference.read(0, 0))


def test_a_copy_of_the_layer_before_did_not_move(tmp_path: Path) -> None:
    traces = []
    for name, num in (("target", 3), ("reference", 2)):
        torch.manual_seed(0)
        first = nn.Linear(6, 6)
        layers = [first, *(nn.Linear(6, 6) for _ in range(num - 1))]
        for one in layers[1:]:
            one.load_state_dict(layers[-1].state_dict())
        made = nn.Sequential(*layers)
        with Tracer(tmp_path / name, steps="0", task="tensor"):
            made(torch.ones(3, 6)).sum().backward()
        traces.append(Trace(tmp_path / name).read(0, 0))
    assert not are_renumbered(*traces)
