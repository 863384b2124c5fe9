"""Outputs of collectives that are still under way, as tensor-parallel layers give them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.distributed import _functional_collectives as collectives  # noqa: E402

import trueup  # noqa: E402
from trueup.importers import open_trace  # noqa: E402
from trueup.store import step_view  # noqa: E402


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Reduced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            told: Tensor = collectives.all_reduce(self.part(x).detach(), "sum", dist.group.WORLD)
        return told


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.row, self.head = Reduced(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        made = self.row(x)
        assert type(made).__name__ == "AsyncCollectiveTensor"
        given: Tensor = self.head(made)
        return given


def trained(folder: Path | None) -> list[Tensor]:
    torch.manual_seed(0)
    model = Model()
    x = torch.randn(3, 4)
    if folder is None:
        model(x).sum().backward()
    else:
        with trueup.Tracer(folder, level="L0", steps="0", task="tensor"):
            model(x).sum().backward()
    return [parameter.grad for parameter in model.head.parameters() if parameter.grad is not None]


@pytest.mark.usefixtures("group")
def test_what_a_collective_gives_is_seen_and_stays_what_it_is(tmp_path: Path) -> None:
    plain, captured = trained(None), trained(tmp_path / "run")
    assert all(map(torch.equal, plain, captured))
    view = step_view(open_trace(tmp_path / "run"), 0, 0)
    (call,) = view.named("module", "row")
    value = view.value(view.record(call, "forward", "output.0"))
    assert value is not None
    assert value.shape == (3, 4)


class Gathered(torch.autograd.Function):
    """In backward the gradient is gathered and reduced by functional collectives, as DTensor's are."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        functions = torch.ops._c10d_functional
        world = dist.group.WORLD.group_name
        whole = functions.all_gather_into_tensor(gradient.contiguous(), 1, world)
        if hasattr(functions, "_wrap_tensor_autograd"):
            functions._wrap_tensor_autograd(whole)
        whole = functions.wait_tensor(whole)
        return functions.wait_tensor(functions.reduce_scatter_tensor(2 * whole, "sum", 1, world))


@pytest.mark.usefixtures("group")
def test_what_functional_collectives_write_is_read_once_they_have_ended(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 4), torch.randn(3, 4)
    with trueup.Tracer(tmp_path / "run", level="L0", steps="0", task="tensor"):
        Gathered.apply(layer(x)).square().sum().backward()
    view = step_view(open_trace(tmp_path / "run"), 0, 0)
    gradient = 2 * layer(x).detach().numpy()
    seen = {
        (view.name[call].rpartition(".")[2], view.slot[record]): view.value(record)
        for record, call in enumerate(view.record_call)
        if view.kind[call] == "collective"
    }
    held = {key: value for key, value in seen.items() if value is not None}
    given = {("all_gather_into_tensor", "input.0"), ("reduce_scatter_tensor", "input.0")}
    assert held.keys() == seen.keys() == {*given, ("wait_tensor", "output.0")}
    for (name, _), value in held.items():
        assert np.allclose(value, gradient if name.startswith("all_gather") else 2 * gradient)
