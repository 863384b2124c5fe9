"""Averaged copies of the weights: which are found and recorded, and that nothing of the program changes."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import trueup
from tests.comparing.averaging import Program, built, run, trained
from trueup.comparing.averages import _Side
from trueup.store import Trace, step_view

pytestmark = pytest.mark.torch

HOLDS = {
    "loop": "Sequential",
    "data": "Sequential",
    "foreach": "Sequential",
    "swa": "AveragedModel",
    "class": "dict",
    "list": "list",
}


def kept(folder: Path) -> list[dict[str, object]]:
    trace = Trace(folder)
    facts = trace.rank_facts(0)
    assert facts["num_failures"] == 0, facts["failures"]
    return [dict(one) for one in facts["averages"]]


def captured(
    folder: Path,
    after: Callable[[nn.Module, int], None],
    *,
    dtype: torch.dtype = torch.float32,
    model: nn.Module | None = None,
    num_steps: int = 3,
) -> list[dict[str, object]]:
    """What was found of a program that does ``after`` once the optimizer has stepped."""
    model = built(dtype) if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with trueup.Tracer(folder, level="L0", steps="0-2"):
        for step in range(num_steps):
            model(torch.randn(32, 8).to(dtype)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                after(model, step)
            optimizer.zero_grad()
    return kept(folder)


@pytest.mark.parametrize("how", sorted(HOLDS))
def test_found_and_recorded_as_it_is_after_each_step(tmp_path: Path, how: str) -> None:
    trained(tmp_path, Program(how=how, values=True))
    (found,) = kept(tmp_path)
    assert (found["slot"], found["kind"], found["held"]) == ("copy.0", HOLDS[how], 0)
    trace = Trace(tmp_path)
    expected = step_view(trace, 0, 0).value(step_view(trace, 0, 0).parameter("0.weight", "param", "value"))
    assert expected is not None
    for step in (0, 1):
        recorded = _Side(trace, rank=0).of_step(step, "copy.0")
        assert recorded is not None
        weight, average = recorded.weight("0.weight"), recorded.average("0.weight")
        assert weight is not None
        assert average is not None
        expected = 0.9 * expected.reshape(-1) + 0.1 * weight
        assert np.allclose(average, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("how", [*sorted(HOLDS), "frozen", "none"])
def test_same_bits_with_capture_on(tmp_path: Path, how: str) -> None:
    assert trained(tmp_path, Program(how=how)) == run(Program(how=how))


def test_records_of_a_step_stand_apart_from_its_calls(tmp_path: Path) -> None:
    trained(tmp_path / "with", Program())
    trained(tmp_path / "without", Program(how="none"))
    tables = [Trace(tmp_path / name).read(0, 0) for name in ("with", "without")]
    assert tables[0].calls.equals(tables[1].calls)
    assert tables[0].records.height == tables[1].records.height
    assert (tables[0].averages is not None, tables[1].averages) == (True, None)


def test_constant_copies_are_left_out(tmp_path: Path) -> None:
    """A reference model, a checkpoint in memory, and one that is taken anew after each step."""
    model = built()
    held: list[object] = [copy.deepcopy(model), {n: t.clone() for n, t in model.state_dict().items()}]

    def after(model: nn.Module, step: int) -> None:
        held[1:] = [held[1], {n: t.clone() for n, t in model.state_dict().items()}]

    assert captured(tmp_path, after, model=model) == []


def test_moments_and_sums_of_the_same_shapes_are_no_copies(tmp_path: Path) -> None:
    model = built()
    state = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    sums = [torch.ones_like(p) for p in model.parameters()]

    def after(model: nn.Module, step: int) -> None:
        for (name, p), total in zip(model.named_parameters(), sums, strict=True):
            state[name].mul_(0.9).add_(p.grad, alpha=0.1)
            total.add_(p.grad)

    assert captured(tmp_path, after, model=model) == []


def test_finer_weights_that_round_to_the_weights_are_no_average(tmp_path: Path) -> None:
    model = built(torch.bfloat16)
    master = {n: p.detach().float() for n, p in model.named_parameters()}

    def after(model: nn.Module, step: int) -> None:
        for name, p in model.named_parameters():
            master[name].copy_(p.float() + 1e-4 * p.float())
            p.copy_(master[name])

    assert captured(tmp_path / "master", after, dtype=torch.bfloat16, model=model) == []

    model = built(torch.bfloat16)
    shadow = {n: p.detach().float() for n, p in model.named_parameters()}

    def average(model: nn.Module, step: int) -> None:
        for name, p in model.named_parameters():
            shadow[name].lerp_(p.float(), 0.1)

    assert len(captured(tmp_path / "average", average, dtype=torch.bfloat16, model=model)) == 1


def test_a_twin_that_trains_is_no_copy(tmp_path: Path) -> None:
    model = built()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)

    def after(model: nn.Module, step: int) -> None:
        for p in twin.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()

    assert captured(tmp_path, after, model=model) == []


def test_a_copy_that_is_made_after_the_first_step(tmp_path: Path) -> None:
    made: list[nn.Module] = []
    model = built()
    teacher = copy.deepcopy(model)

    def after(model: nn.Module, step: int) -> None:
        if not made:
            made.append(copy.deepcopy(model))
        for a, b in zip(made[0].parameters(), model.parameters(), strict=True):
            a.lerp_(b, 0.1)

    (found,) = captured(tmp_path, after, model=model)
    assert found["held"] == 1
    assert len(list(teacher.parameters())) == 6
    recorded = _Side(Trace(tmp_path), rank=0).of_step(1, "copy.0")
    assert recorded is not None
    fit = recorded.fit()
    assert fit is not None
    assert fit.decay == pytest.approx(0.9, abs=1e-3)


def test_keyed_by_the_parameters_themselves(tmp_path: Path) -> None:
    model = built()
    shadow: dict[Tensor, Tensor] = {p: p.detach().clone() for p in model.parameters()}

    def after(model: nn.Module, step: int) -> None:
        for p, average in shadow.items():
            average.lerp_(p, 0.1)

    assert [one["kind"] for one in captured(tmp_path, after, model=model)] == ["dict"]


def test_of_one_part_of_a_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = built()
    model = nn.Sequential(encoder, nn.Linear(4, 4))
    momentum = copy.deepcopy(encoder)

    class Part(nn.Sequential):
        pass

    encoder.__class__ = momentum.__class__ = Part

    def after(model: nn.Module, step: int) -> None:
        for a, b in zip(momentum.parameters(), encoder.parameters(), strict=True):
            a.lerp_(b, 0.1)

    assert [one["kind"] for one in captured(tmp_path, after, model=model)] == ["Part"]
    recorded = _Side(Trace(tmp_path), rank=0).of_step(0, "copy.0")
    assert recorded is not None
    assert "0.0.weight" in recorded.records


@pytest.mark.parametrize("as_dict", [False, True])
def test_nothing_is_kept_alive(tmp_path: Path, as_dict: bool) -> None:
    model = built()
    held: list[object] = []
    gone: list[weakref.ref[object]] = []
    made = copy.deepcopy(model)
    held.append({n: p.detach() for n, p in made.named_parameters()} if as_dict else made)
    gone.append(weakref.ref(next(made.parameters()).detach_() if as_dict else made))
    del made

    def after(model: nn.Module, step: int) -> None:
        if step == 1:
            held.clear()
            gc.collect()
            assert gone[0]() is None
        for one in held:
            tensors = one.values() if isinstance(one, dict) else one.parameters()
            for a, b in zip(tensors, model.parameters(), strict=True):
                a.lerp_(b, 0.1)

    assert len(captured(tmp_path, after, model=model)) == 1
    trace = Trace(tmp_path)
    assert [trace.read(step, 0).averages is not None for step in trace.steps()] == [True, False, False]


def test_tensors_of_a_copy_may_be_swapped(tmp_path: Path) -> None:
    model = built()
    shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    def after(model: nn.Module, step: int) -> None:
        for name, p in model.named_parameters():
            torch.utils.swap_tensors(shadow[name], shadow[name] * 0.9 + p * 0.1)

    captured(tmp_path, after, model=model)


def test_recorded_where_the_program_evaluates_before_it_lets_go(tmp_path: Path) -> None:
    """Of the last step, which ends with the program: what it averaged may be gone by then."""

    def training() -> None:
        model = built()
        ema, optimizer = copy.deepcopy(model), torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(2):
            model(torch.randn(32, 8)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for a, b in zip(ema.parameters(), model.parameters(), strict=True):
                    a.lerp_(b, 0.1)
            optimizer.zero_grad()
        with torch.no_grad():
            ema.eval()(torch.randn(32, 8))

    with trueup.Tracer(tmp_path, level="L0", steps="0-1"):
        training()
        gc.collect()
    assert Trace(tmp_path).read(1, 0).averages is not None
    assert len(kept(tmp_path)) == 1
