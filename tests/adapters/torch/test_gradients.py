"""Recorded gradients are the true ones: the total at outputs, each call's own share at inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.adapters.torch.loops import SMALL
from tests.adapters.torch.reading import Captured, capture, total, train_once
from tests.models.gpt import GPT, batch, loss_of

pytestmark = pytest.mark.torch


class _Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, note: Callable[[Tensor], None]) -> Tensor:
        ctx.note = note
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.note(gradients[0])
        return gradients[0], None


def truth(model: nn.Module, run: Callable[[], None]) -> dict[tuple[str, str], Tensor]:
    """Gradients by (module, slot), found by putting an identity in front of each use."""
    found: dict[tuple[str, str], Tensor] = {}

    def noting(key: tuple[str, str]) -> Callable[[Tensor], None]:
        def note(gradient: Tensor) -> None:
            assert key not in found, f"{key} twice"
            found[key] = gradient.clone()

        return note

    def wrap(name: str) -> Callable[..., Any]:
        def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
            def one(slot: str, value: Any) -> Any:
                if isinstance(value, Tensor) and value.requires_grad:
                    return _Identity.apply(value, noting((name, slot)))
                return value

            named = {k: one(f"input.{k}", v) for k, v in kwargs.items()}
            return tuple(one(f"input.{i}", v) for i, v in enumerate(args)), named

        return before

    def after(name: str) -> Callable[..., None]:
        def watch(_: nn.Module, __: Any, result: Any) -> None:
            for i, tensor in enumerate(result if isinstance(result, tuple) else (result,)):
                if tensor.requires_grad:
                    tensor.register_hook(noting((name, f"output.{i}")))

        return watch

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(wrap(name), with_kwargs=True))
        handles.append(module.register_forward_hook(after(name)))
    run()
    for handle in handles:
        handle.remove()
    return found


def recorded(run: Captured) -> dict[tuple[str, str], Tensor]:
    return {
        (r["site"]["name"], r["slot"]): run.values(r)
        for r in run.records
        if r["phase"] == "backward" and r["site"]["kind"] == "module"
    }


def assert_true(
    model: nn.Module, run: Callable[[], None], tmp_path: Path, *, unchanged: tuple[str, ...] = ()
) -> dict[tuple[str, str], Tensor]:
    """``unchanged``: modules that return their input itself, and so send it nothing of their own."""
    expected = truth(model, run)
    actual = recorded(capture(tmp_path / "run", run, level="L0"))
    assert set(actual) == {
        (m, s) for m, s in expected if s.startswith("output") or not m.endswith(unchanged or "-")
    }
    for key, value in actual.items():
        torch.testing.assert_close(
            value, expected[key], rtol=1e-5, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}"
        )
    return actual


def test_every_module_of_a_gpt(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GPT(SMALL).eval()
    for block in model.layers:
        block.attn.rotary = nn.Identity()  # one call a module
    ids, labels = batch(SMALL, step=0, size=2)
    for block in model.layers:
        block.attn.forward = _attention(block.attn)
    run = assert_true(
        model, lambda: loss_of(model, ids, labels).backward(), tmp_path, unchanged=("drop", "rotary")
    )
    assert len(run) > 40


def _attention(module: Any) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        q, k, v = module.qkv(x).split(x.shape[-1], dim=-1)
        return module.proj(module.rotary(F.scaled_dot_product_attention(q, k, v, is_causal=True)))

    return forward


class Many(nn.Module):
    """An input used three times inside and once outside, two outputs, keyword inputs, something read from
    outside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Uses()
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.inner.outside = (x * 5).sin()
        first, second = self.inner(x.tanh(), scale=x.cos(), both=x)
        return self.last(first) + second * x + first


class Uses(nn.Module):
    outside: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, *, scale: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
        y = x * x + x.exp() * self.weight
        return y * scale, (both * 2 + x).square() * self.outside


@pytest.mark.parametrize("leaf", [True, False])
def test_inputs_used_several_times_inside_and_outside(leaf: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Many()
    start = torch.randn(3, 4, requires_grad=True)

    def run() -> None:
        model.zero_grad()
        total(model(start if leaf else start * 1.0)).backward()

    actual = assert_true(model, run, tmp_path)
    assert ("inner", "input.scale") in actual
    assert not torch.equal(actual["inner", "input.both"], actual["", "input.0"])


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) * self.second(x)


def test_a_leaf_that_autocast_casts_once_for_two_calls(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, leaf = Twice(), torch.randn(4, 8, requires_grad=True)

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            total(model(leaf)).backward()

    got = recorded(capture(tmp_path / "run", run, level="L0"))
    for name in ("first", "second"):
        share = got[name, "output.0"].bfloat16() @ getattr(model, name).weight.detach().bfloat16()
        torch.testing.assert_close(got[name, "input.0"].float(), share.float(), rtol=0.02, atol=0.02)


class _Unseen(torch.autograd.Function):
    """Takes the weight as an argument and gives it its gradient elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        weight.grad = gradients[0].T @ x
        return gradients[0] @ weight, None


def test_a_function_that_returns_no_gradient_for_a_weight(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, bias=False))

    def run() -> None:
        total(_Unseen.apply(model[0](torch.ones(2, 8)), model[1].weight)).backward()

    assert capture(tmp_path / "run", run, level="L0").records  # and no failure


def test_the_comparison_can_fail(tmp_path: Path) -> None:
    model = Many()
    x = torch.randn(3, 4, requires_grad=True)
    expected = truth(model, lambda: train_once(model, x))
    actual = recorded(capture(tmp_path / "run", lambda: train_once(model, x * 2), level="L0"))
    assert not torch.allclose(actual["inner", "input.0"], expected["inner", "input.0"])


def test_outputs_changed_in_place_afterwards(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    x = torch.randn(3, 4)

    def run() -> None:
        hidden = model[0](x)
        hidden.mul_(2.0)
        total(model[2](model[1](hidden))).backward()

    run_ = capture(tmp_path / "run", run, level="L0")
    hidden = F.linear(x, model[0].weight, model[0].bias).detach().requires_grad_()
    out = F.linear((hidden * 2).relu(), model[2].weight, model[2].bias)
    (expected,) = torch.autograd.grad(total(out), hidden)
    roots = [r for r in run_.records if r["phase"] == "backward" and r["slot"] == "output.0"]
    assert len(roots) == 3
    torch.testing.assert_close(run_.values(roots[-1]), expected)


def test_no_gradient_no_record(tmp_path: Path) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.unused(x)
            return self.used(x)

    run = capture(tmp_path / "run", lambda: train_once(Half(), torch.randn(2, 4)), level="L0")
    assert run.slots("used", "backward") == ["output.0"]
    assert run.slots("unused", "backward") == []
    assert run.slots("used.weight", "param_grad") == ["local", "accumulated"]
    assert run.slots("unused.weight", "param_grad") == []


def test_parameter_gradients_per_microbatch_accumulated_and_clipped(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = [torch.randn(3, 4) for _ in range(3)]
    alone = [torch.autograd.grad(total(model(b)), model.weight)[0] for b in batches]

    def program() -> None:
        for x in batches:
            total(model(x)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    run = capture(tmp_path / "run", program, level="L0")
    for m in range(3):
        assert torch.equal(run.value("weight", "param_grad", "local", microbatch=m), alone[m])
        expected = sum(alone[1 : m + 1], alone[0])
        torch.testing.assert_close(run.value("weight", "param_grad", "accumulated", microbatch=m), expected)
        assert run.one("", "forward", "input.0", microbatch=m)
    assert model.weight.grad is not None
    assert torch.equal(run.value("weight", "param_grad", "clipped"), model.weight.grad)
    clipped = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
    assert clipped.item() == pytest.approx(0.5, rel=1e-4)
    line = run.trace.scalars(0)[0]
    assert line["microbatches"] == 3
    assert line["grad_norm"] == pytest.approx(line["local_norm"], rel=1e-5)
    assert len(line["losses"]) == 3


# -- API level ---------------------------------------


def api_truth(function: Callable[..., Any], inputs: list[Tensor]) -> tuple[list[Tensor | None], list[Tensor]]:
    """Gradients of inputs and outputs of one call whose outputs go into ``total``."""
    copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    results = function(*[c * 1.0 if c.requires_grad else c for c in copies])
    leaves = [
        t for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, Tensor) and t.requires_grad
    ]
    wanted = [c for c in copies if c.requires_grad]
    found = list(torch.autograd.grad(total(results), [*wanted, *leaves]))
    arrived = found[len(wanted) :]
    given = iter(found[: len(wanted)])
    return [next(given) if c.requires_grad else None for c in copies], arrived


X, Y, W = torch.randn(4, 6), torch.randn(4, 6), torch.randn(5, 6)
LABELS = torch.tensor([0, 3, 5, 1])
APIS: dict[str, tuple[Callable[..., Any], list[Tensor], str]] = {
    "mul": (torch.mul, [X, Y], "torch.mul"),
    "linear": (F.linear, [X, W], "torch.nn.functional.linear"),
    "linear 3d": (F.linear, [X[None].contiguous(), W], "torch.nn.functional.linear"),
    "cross_entropy": (lambda x: F.cross_entropy(x, LABELS), [X], "torch.nn.functional.cross_entropy"),
    "softmax": (lambda x: F.softmax(x, -1), [X], "torch.nn.functional.softmax"),
    "layer_norm": (
        lambda x, w: F.layer_norm(x, (6,), w),
        [X, W[0].clone()],
        "torch.nn.functional.layer_norm",
    ),
    "sdpa": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [torch.randn(1, 2, 4, 8) for _ in range(3)],
        "torch.nn.functional.scaled_dot_product_attention",
    ),
    "split": (lambda x: torch.split(x, 2, -1), [X], "torch.split"),
    "chunk": (lambda x: x.chunk(3, -1), [X], "torch.Tensor.chunk"),
    "unbind": (lambda x: x.unbind(0), [X], "torch.Tensor.unbind"),
    "getitem": (lambda x: x[1:3], [X], "torch.Tensor.__getitem__"),
    "getitem several": (lambda x: x[1:3, None, ::2], [X], "torch.Tensor.__getitem__"),
    "getitem mask": (lambda x: x[:, torch.tensor([0, 2, 2])], [X], "torch.Tensor.__getitem__"),
    "cat": (lambda x, y: torch.cat([x, y], -1), [X, Y], "torch.cat"),
    "std": (lambda x: torch.std_mean(x, -1), [X], "torch.std_mean"),
    "einsum": (lambda x, w: torch.einsum("ij,kj->ik", x, w), [X, W], "torch.einsum"),
    "where": (lambda x, y: torch.where(x > 0, x, y), [X, Y], "torch.where"),
    "mul_": (lambda x, y: x.mul_(y), [X, Y], "torch.Tensor.mul_"),
    "masked_fill": (lambda x: x.masked_fill(X > 0, 0.0), [X], "torch.Tensor.masked_fill"),
}


@pytest.mark.parametrize("case", sorted(APIS))
def test_api_calls(case: str, tmp_path: Path) -> None:
    function, plain, name = APIS[case]
    inputs = [t.clone().requires_grad_() for t in plain]
    sent, arrived = api_truth(function, inputs)

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.ParameterList(inputs)

        def forward(self) -> Any:
            return function(*[p * 1.0 for p in self.own])

    model = Root()
    run = capture(tmp_path / "run", lambda: total(model()).backward(), level="L1")
    slots = run.slots(name, "forward")
    ins = [s for s in slots if s.startswith("input") and f"{s}" in run.slots(name, "backward")]
    outs = [s for s in slots if s.startswith("output")]
    assert len(ins) == len(sent), (slots, run.slots(name, "backward"))
    for slot, gradient in zip(ins, sent, strict=True):
        torch.testing.assert_close(
            run.value(name, "backward", slot), gradient, msg=lambda m, s=slot: f"{s}: {m}"
        )
    assert len(outs) == len(arrived)
    for slot, gradient in zip(outs, arrived, strict=True):
        torch.testing.assert_close(
            run.value(name, "backward", slot), gradient, msg=lambda m, s=slot: f"{s}: {m}"
        )


def test_a_tensor_given_twice_to_one_operation(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.randn(3, 3))

    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self) -> Tensor:
            doubled = self.weight * 2
            return torch.matmul(doubled, doubled)

    run = capture(tmp_path / "run", lambda: Square()().sum().backward(), level="L1")
    left = run.value("torch.matmul", "backward", "input.0")
    right = run.value("torch.matmul", "backward", "input.1")
    ones, doubled = torch.ones(3, 3), weight.detach() * 2
    torch.testing.assert_close(left, ones @ doubled.t())
    torch.testing.assert_close(right, doubled.t() @ ones)


def test_gradients_asked_for_by_autograd_grad(tmp_path: Path) -> None:
    model = Many()
    x = torch.randn(3, 4)

    def run() -> None:
        loss = total(model(x * model.inner.weight))
        torch.autograd.grad(loss, list(model.parameters()))

    expected = truth(model, run)
    actual = recorded(capture(tmp_path / "run", run, level="L0"))
    assert set(actual) == set(expected)
    for key, value in expected.items():
        torch.testing.assert_close(actual[key], value)


def test_a_graph_gone_through_twice_and_gradients_of_gradients(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(3, 4, requires_grad=True)

    def run() -> None:
        out = model(x).sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        (out + gradient.square().sum()).backward()

    found = capture(tmp_path / "run", run, level="mix").find("0", "backward", "output.0")
    assert len(found) == 2
