"""Parameters whose contents a program exchanges, replaces, copies or writes away between steps: the same bits
with capture on, and steps that miss nothing."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import trueup
from trueup.store import Trace

pytestmark = pytest.mark.torch

STEPS = 4
Change = Callable[[nn.Module, torch.optim.Optimizer], None]


def train(change: Change) -> tuple[list[float], list[Tensor]]:
    """Losses and weights of a few steps; ``change`` is called after each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        dtype = next(model.parameters()).dtype
        loss = model(torch.ones(4, 8, dtype=dtype) * (step + 1)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        change(model, optimizer)
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def swap(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().clone()))


@contextmanager
def swapping() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def converted(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with swapping():
        model.to(torch.float64).to(torch.float32)


def halved(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with swapping():
        model.half().float()


def applied(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with swapping():
        model._apply(lambda tensor: tensor * 1.0)


def loaded(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with swapping():
        model.load_state_dict(state)


def assigned(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    optimizer.param_groups[0]["params"] = list(model.parameters())


def hooked_after_a_swap(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A hook that the program registers after a swap changes the training: it must run as without capture."""
    swap(model, optimizer)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)


def copied(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    copy.deepcopy((model, optimizer))


def pickled(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    pickle.loads(pickle.dumps((model, optimizer)))


def written(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.save(model, io.BytesIO())
    torch.save(optimizer.state_dict(), io.BytesIO())


CHANGES: dict[str, Change] = {
    "swap_tensors": swap,
    "to": converted,
    "half": halved,
    "_apply": applied,
    "load_state_dict": loaded,
    "load_state_dict(assign=True)": assigned,
    "hook after a swap": hooked_after_a_swap,
    "deepcopy": copied,
    "pickle": pickled,
    "torch.save": written,
}


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("name", CHANGES)
def test_between_steps(name: str, level: str, tmp_path: Path) -> None:
    expected = train(CHANGES[name])
    with trueup.Tracer(tmp_path / "run", level=level, steps=f"0-{STEPS - 1}"):
        losses, weights = train(CHANGES[name])
    assert losses == expected[0]
    assert all(torch.equal(a, e) for a, e in zip(weights, expected[1], strict=True))
    trace = Trace(tmp_path / "run")
    assert trace.rank_facts(0)["num_failures"] == 0, trace.rank_facts(0)["failures"]
    for step in range(STEPS):
        records = trace.read(step, 0).records
        # a swap of a tensor that has the program's own hooks leaves torch deaf to any hook on it
        deaf = name == "hook after a swap" and step >= 2
        for slot in ("accumulated", "clipped") if deaf else ("local", "accumulated", "clipped"):
            num = records.filter((records["phase"] == "param_grad") & (records["slot"] == slot)).height
            assert num == 4, (step, slot)


def test_no_hook_of_ours_stays_on_a_swapped_parameter(tmp_path: Path) -> None:
    """The tensor that is left after a swap has nothing of the first: neither its hook nor a dictionary."""
    model = nn.Linear(2, 1)
    with trueup.Tracer(tmp_path / "run", steps="0"):
        model(torch.ones(1, 2)).sum().backward()
        assert model.weight._backward_hooks
        model.weight.grad = None
        swap(model, torch.optim.SGD(model.parameters(), 0.1))
        assert model.weight._backward_hooks is None


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_data_loader(context: str, tmp_path: Path) -> None:
    def run() -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = [torch.full((2,), float(i)) for i in range(8)]
        losses = []
        loader: DataLoader[Tensor] = DataLoader(
            data,  # type: ignore[arg-type]
            batch_size=4,
            num_workers=1,
            multiprocessing_context=context,
        )
        for batch in loader:
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    expected = run()
    with trueup.Tracer(tmp_path / "run", level="mix", steps="0-1"):
        assert run() == expected
    assert list(Trace(tmp_path / "run").steps()) == [0, 1]
