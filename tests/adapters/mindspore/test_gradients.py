"""Recorded gradients are the true ones: the total at outputs, each call's own share at inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn

from tests.adapters.mindspore.models import GPT, Linear, batch, weights
from tests.adapters.mindspore.reading import Captured, capture, gradients_of, total

pytestmark = pytest.mark.mindspore


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


class Scale(nn.Cell):
    def __init__(self, seed: int, size: int = 4) -> None:
        super().__init__()
        self.weight = Parameter(weights(seed, size) * 10, name="weight")

    def construct(self, x: Tensor) -> Tensor:
        return x * self.weight


class Shared(nn.Cell):
    """One tensor goes into two cells: each sends back its own share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = Scale(1), Scale(2), Scale(3)

    def construct(self, x: Tensor) -> Tensor:
        hidden = mint.exp(self.first(x))
        return self.left(hidden) + mint.sin(self.right(hidden))


def test_a_tensor_of_two_cells_has_two_shares_and_their_sum(tmp_path: Path) -> None:
    model, x = Shared(), weights(5, 3, 4)
    run = capture(tmp_path / "run", lambda: gradients_of(model, x), level="L0")
    at = np.linspace(0.5, 1.5, 12, dtype=np.float32).reshape(3, 4)
    first, left, right = (cell.weight.asnumpy() for cell in (model.first, model.left, model.right))
    hidden = np.exp(x.asnumpy() * first)
    through_left, through_right = at * left, at * np.cos(hidden * right) * right
    close(run.value("left", "backward", "input.0"), through_left)
    close(run.value("right", "backward", "input.0"), through_right)
    close(run.value("left", "backward", "output.0"), at)
    close(run.value("first", "backward", "output.0"), (through_left + through_right) * hidden)
    close(run.value("", "backward", "output.0"), at)
    assert not run.find("first", "backward", "input.0"), "the batch wants no gradient"


class Many(nn.Cell):
    """An input used three times inside and once outside, two outputs, keywords, one read from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.start = Scale(1)
        self.inner = Uses()
        self.last = Linear(9, 4, 4)

    def construct(self, x: Tensor) -> Tensor:
        x = self.start(x)
        self.inner.outside = mint.sin(x * 5)
        first, second = self.inner(mint.tanh(x), scale=mint.cos(x), both=x)
        return self.last(first) + second * x + first


class Uses(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(weights(4, 4) * 10, name="weight")
        self.outside: Any = None

    def construct(self, x: Tensor, *, scale: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
        first = x * self.weight + x * scale + mint.exp(x) + self.outside
        return first, both * scale


def _shares(model: Many, x: Tensor) -> dict[str, np.ndarray[Any, Any]]:
    """The same gradients, computed by hand as gradients of the inner cell alone."""
    inner, last, start = model.inner, model.last, model.start
    hidden = start(x)
    a, b, c = mint.tanh(hidden), mint.cos(hidden), Tensor(hidden.asnumpy())
    outside = mint.sin(hidden * 5)

    def from_inputs(one: Tensor, scale: Tensor, both: Tensor) -> Tensor:
        first = one * inner.weight + one * scale + mint.exp(one) + outside
        second = both * scale
        return total(last(first) + second * hidden + first)

    found = ms.grad(from_inputs, (0, 1, 2))(a, b, c)
    return dict(zip(("input.0", "input.scale", "input.both"), (g.asnumpy() for g in found), strict=True))


def test_inputs_used_often_and_by_keyword(tmp_path: Path) -> None:
    model, x = Many(), weights(6, 2, 4)
    expected = _shares(model, x)
    run = capture(tmp_path / "run", lambda: gradients_of(model, x), level="L0")
    for slot, value in expected.items():
        close(run.value("inner", "backward", slot), value)


def test_every_cell_of_a_gpt_passes_on_what_the_next_one_got(tmp_path: Path) -> None:
    model, (ids, _) = GPT(), batch(0)
    run = capture(tmp_path / "run", lambda: gradients_of(model, ids), level="L0")
    for layer in ("layers.0", "layers.1"):
        # the block's output goes to the next block alone
        after = "layers.1" if layer == "layers.0" else "norm"
        close(run.value(layer, "backward", "output.0"), run.value(after, "backward", "input.0"))
        attention = run.value(f"{layer}.norm1", "backward", "output.0")
        close(attention, run.value(f"{layer}.attn", "backward", "input.0"))
        close(run.value(f"{layer}.attn.qkv", "backward", "input.0"), attention)


def test_parameter_gradients_are_the_program_s(tmp_path: Path) -> None:
    model, (ids, _) = GPT(), batch(0)
    expected = gradients_of(model, ids)
    run = capture(tmp_path / "run", lambda: gradients_of(model, ids), level="L0")
    names = [name for _, name in _named(model)]
    assert len(names) == len(expected)
    for name, gradient in zip(names, expected, strict=True):
        assert np.array_equal(run.value(name, "param_grad", "local"), gradient.asnumpy()), name


def _named(model: nn.Cell) -> list[tuple[Parameter, str]]:
    by_place = {}
    for name, cell in model.cells_and_names():
        for key, parameter in cell._params.items():
            by_place.setdefault(id(parameter), f"{name}.{key}".lstrip("."))
    return [(parameter, by_place[id(parameter)]) for parameter in model.trainable_params()]


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda h: mint.exp(h), "mindspore.mint.exp"),
        (lambda h: mint.nn.functional.silu(h), "mindspore.mint.nn.functional.silu"),
        (lambda h: ms.ops.log_softmax(h), "mindspore.ops.log_softmax"),
        (lambda h: h * h, "mindspore.Tensor.__mul__"),
    ],
)
def test_api_calls_have_both_sides(work: Callable[[Tensor], Tensor], name: str, tmp_path: Path) -> None:
    class Root(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(weights(1, 4) * 10, name="weight")

        def construct(self, x: Tensor) -> Tensor:
            return work(x + self.weight)

    model, x = Root(), weights(2, 3, 4)
    hidden = x + model.weight
    expected = ms.grad(lambda h: total(work(h)))(hidden).asnumpy()
    run = capture(tmp_path / "run", lambda: gradients_of(model, x), level="L1")
    inside = {"parent": next(i for i, c in enumerate(run.calls) if c["kind"] == "module")}
    at = np.linspace(0.5, 1.5, 12, dtype=np.float32).reshape(3, 4)
    close(run.value(name, "backward", "output.0", **inside), at)
    shares = [run.values(r) for r in run.find(name, "backward", "input.0", **inside)]
    shares += [run.values(r) for r in run.find(name, "backward", "input.1", **inside)]
    close(sum(shares), expected)


class Odd(nn.Cell):
    """Gives back a dict; is given None and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(weights(4, 4) * 10, name="weight")

    def construct(self, parts: list[Tensor], nothing: Any = None) -> dict[str, Tensor]:
        return {"a": parts[0] * self.weight, "b": parts[1] + self.weight}


class OddRoot(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.start, self.odd = Scale(1), Odd()

    def construct(self, x: Tensor) -> Tensor:
        hidden = self.start(x)
        found = self.odd([hidden, mint.exp(hidden)], None)
        return found["a"] + found["b"] * 2


def test_dicts_and_lists_have_gradients_too(tmp_path: Path) -> None:
    model, x = OddRoot(), weights(6, 2, 4)
    run = capture(tmp_path / "run", lambda: gradients_of(model, x), level="L0")
    at = np.linspace(0.5, 1.5, 8, dtype=np.float32).reshape(2, 4)
    close(run.value("odd", "backward", "output.a"), at)
    close(run.value("odd", "backward", "output.b"), at * 2)
    close(run.value("odd", "backward", "input.0.0"), at * model.odd.weight.asnumpy())
    close(run.value("odd", "backward", "input.0.1"), at * 2)


def test_recomputed_calls_are_marked_and_gradients_belong_to_the_originals(tmp_path: Path) -> None:
    plain, (ids, _) = GPT(), batch(0)
    expected = capture(tmp_path / "plain", lambda: gradients_of(plain, ids), level="L0")
    model = GPT()
    for layer in model.layers:
        layer.recompute()
    run = capture(tmp_path / "run", lambda: gradients_of(model, ids), level="L0")
    assert {c["mode"] for c in run.calls if c["kind"] == "module"} == {"train", "recompute"}
    assert [s for s in expected.sites() if s not in run.sites()] == []
    for name in ("layers.0", "layers.1", "layers.0.attn.qkv", "layers.1.down"):
        for slot in ("input.0", "output.0"):
            close(run.value(name, "backward", slot, mode="train"), expected.value(name, "backward", slot))


def test_a_tied_parameter_has_one_gradient(tmp_path: Path) -> None:
    model, (ids, _) = GPT(tied=True), batch(0)
    expected = {p.name: g for p, g in zip(model.trainable_params(), gradients_of(model, ids), strict=True)}
    run = capture(tmp_path / "run", lambda: gradients_of(model, ids), level="L0")
    table = {row["fqn"]: row for row in run.facts["parameters"]}
    assert table["head.weight"]["tied_to"] == "emb.embedding_table"
    tied = model.emb.embedding_table
    assert np.array_equal(
        run.value("emb.embedding_table", "param_grad", "local"), expected[tied.name].asnumpy()
    )
    assert not run.find("head.weight", "param_grad", "local")


def test_what_is_asked_of_backward_and_no_more(tmp_path: Path) -> None:
    model, (ids, _) = GPT(), batch(0)
    whole = capture(tmp_path / "whole", lambda: gradients_of(model, ids), level="L0")
    less = capture(
        tmp_path / "less", lambda: gradients_of(model, ids), level="L0", data_mode=["backward", "output"]
    )
    assert {r["phase"] for r in less.records} == {"backward", "param", "param_grad", "loss"}
    wanted = [r for r in whole.records if r["phase"] == "backward" and r["slot"].startswith("output")]
    assert len([r for r in less.records if r["phase"] == "backward"]) == len(wanted)


def test_capture_of_nothing_is_noticed(tmp_path: Path) -> None:
    """The reader finds what is there and says what is not."""
    run = capture(tmp_path / "run", lambda: gradients_of(Shared(), weights(5, 3, 4)), level="L0")
    assert isinstance(run, Captured)
    with pytest.raises(AssertionError, match="0 records"):
        run.value("left", "backward", "input.7")
