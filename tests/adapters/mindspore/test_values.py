"""What is recorded is what was there: values, statistics and digests at the time of the call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

import trueup
from tests.adapters.mindspore import aliases
from tests.adapters.mindspore.models import GPT, batch
from tests.adapters.mindspore.reading import Captured, capture, gradients_of
from trueup.numerics._native import EVERYTHING, summarise_by_definition

pytestmark = pytest.mark.mindspore


def f32(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class Watch(nn.Cell):
    """Returns what it is given: a place to look at a tensor."""

    def construct(self, x: Any) -> Any:
        return x


class Body(nn.Cell):
    """A root with a parameter, a watch before and one after, and whatever a test does in between."""

    def __init__(self, work: Callable[[Tensor], Any], size: int = 6) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.linspace(0.1, 1.0, size, dtype=np.float32)), name="weight")
        self.before, self.after = Watch(), Watch()
        self._work = work

    def construct(self, x: Tensor) -> Any:
        hidden = x * self.weight
        self.before(hidden)
        hidden = self._work(hidden)
        self.after(hidden)
        return hidden


def worked(tmp_path: Path, work: Callable[[Tensor], Any], x: Tensor, **options: Any) -> Captured:
    return capture(tmp_path / "run", lambda: gradients_of(Body(work, x.shape[-1]), x), **options)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Nested(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(3, np.float32)), name="weight")

    def construct(self, x: Tensor, pair: Pair, *, options: dict[str, Any], mask: Tensor | None = None) -> Any:
        first = x * self.weight + pair.left
        return {"logits": first, "hidden": (pair.right, None, [first * 2]), "scale": options["scale"]}


def test_nested_arguments_and_results(tmp_path: Path) -> None:
    x, pair = f32(2, 3), Pair(f32(3, seed=1), f32(2, seed=2))
    options = {"scale": 0.5, "table": Tensor(np.arange(4)), "none": None}
    run = capture(
        tmp_path / "run", lambda: gradients_of(Nested(), x, pair, options=options, mask=None), level="L0"
    )
    assert np.array_equal(run.value("", "forward", "input.0"), x.asnumpy())
    assert np.array_equal(run.value("", "forward", "input.1.left"), pair.left.asnumpy())
    assert np.array_equal(run.value("", "forward", "input.1.right"), pair.right.asnumpy())
    assert np.array_equal(run.value("", "forward", "input.options.table"), np.arange(4))
    logits = (x + pair.left).asnumpy()
    assert np.array_equal(run.value("", "forward", "output.logits"), logits)
    assert np.array_equal(run.value("", "forward", "output.hidden.0"), pair.right.asnumpy())
    assert np.array_equal(run.value("", "forward", "output.hidden.2.0"), logits * 2)
    assert run.arguments("", kind="module") == {"input.options.scale": 0.5}
    assert not [s for s in run.slots("", "forward") if "mask" in s or "none" in s or "scale" in s]


ODD = {
    "0d": Tensor(3.5, ms.float32),
    "empty": Tensor(np.zeros(0, np.float32)),
    "empty middle": Tensor(np.zeros((2, 0, 3), np.float32)),
    "not finite": Tensor(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40], np.float32)),
    "float16": f32(5, 3).astype(ms.float16),
    "bfloat16": f32(5, 3).astype(ms.bfloat16),
    "float64": f32(4).astype(ms.float64),
    "int8": Tensor(np.arange(-5, 5, dtype=np.int8)),
    "int64": Tensor(np.arange(-5, 5)),
    "bool": Tensor(np.array([True, False])),
}


@pytest.mark.parametrize("name", sorted(ODD))
def test_statistics_digest_and_values_are_the_definition_s(name: str, tmp_path: Path) -> None:
    x = ODD[name]
    body = Body(lambda h: (Watch()(x), h)[1])
    run = capture(tmp_path / "run", lambda: gradients_of(body, f32(2, 6)), level="L0")
    record = run.one("<Watch>", "forward", "input.0")
    dtype = str(x.dtype).lower()
    assert record["summary"]["dtype"] == dtype
    assert tuple(record["summary"]["shape"]) == tuple(x.shape)
    stored = run.values(record)
    if dtype != "bfloat16":
        assert stored.tobytes() == x.asnumpy().tobytes()
    expected = summarise_by_definition(stored, EVERYTHING, dtype)
    for field in ("digest", "num_nan", "num_posinf", "num_neginf"):
        assert record["summary"][field] == expected[field]
    for field in ("minimum", "maximum", "mean", "l2_norm"):
        if field in record["summary"] and record["summary"][field] is not None:
            assert record["summary"][field] == pytest.approx(float(expected[field]), nan_ok=True)


def test_a_view_that_is_not_contiguous(tmp_path: Path) -> None:
    wide = f32(3, 4, 5)
    view = mint.transpose(wide, 0, 2)[1:3]
    body = Body(lambda h: (Watch()(view), h)[1])
    run = capture(tmp_path / "run", lambda: gradients_of(body, f32(2, 6)), level="L0")
    expected = np.ascontiguousarray(wide.asnumpy().transpose(2, 1, 0)[1:3])
    assert np.array_equal(run.value("<Watch>", "forward", "input.0"), expected)
    summary = run.one("<Watch>", "forward", "input.0")["summary"]
    assert summary["digest"] == summarise_by_definition(expected, EVERYTHING, "float32")["digest"]


def test_forward_values_are_a_hook_free_program_s(tmp_path: Path) -> None:
    """Every cell's output, beside what the same cells give when called without capture."""
    model, (ids, _) = GPT(), batch(0)
    expected = {"": model(ids)}
    x = model.emb(ids)
    for number, layer in enumerate(model.layers):
        expected[f"layers.{number}.norm1"] = layer.norm1(x)
        expected[f"layers.{number}.attn"] = layer.attn(expected[f"layers.{number}.norm1"])
        x = expected[f"layers.{number}"] = layer(x)
    run = capture(tmp_path / "run", lambda: gradients_of(model, ids), level="L0")
    for name, value in expected.items():
        assert np.array_equal(run.value(name, "forward", "output.0"), value.asnumpy()), name


@pytest.mark.parametrize(
    ("work", "name", "inputs"),
    [
        (lambda h: h - 1, "mindspore.Tensor.__sub__", 1),
        (lambda h: 2 - h, "mindspore.Tensor.__rsub__", 1),
        (lambda h: h / h, "mindspore.Tensor.__truediv__", 2),
        (lambda h: h[0], "mindspore.Tensor.__getitem__", 1),
        (lambda h: h.reshape(-1), "mindspore.Tensor.reshape", 1),
        (lambda h: mint.cat((h, h)), "mindspore.mint.cat", 2),
        (lambda h: mint.nn.functional.silu(h), "mindspore.mint.nn.functional.silu", 1),
        (lambda h: ops.log_softmax(h), "mindspore.ops.log_softmax", 1),
        (lambda h: ops.MatMul(transpose_b=True)(h, h), "mindspore.ops.Primitive.MatMul", 2),
        (lambda h: ops.Abs()(h), "mindspore.ops.Primitive.Abs", 1),
    ],
)
def test_each_call_is_seen_once_under_its_name(
    work: Callable[[Tensor], Tensor], name: str, inputs: int, tmp_path: Path
) -> None:
    x = f32(2, 6)
    run = worked(tmp_path, work, x)
    by_parent = [c["name"] for c in run.calls if c["kind"] == "api" and c["parent"] is not None]
    assert by_parent == ["mindspore.Tensor.__mul__", name]
    assert len([s for s in run.slots(name, "forward") if s.startswith("input")]) == inputs
    hidden = x * Tensor(np.linspace(0.1, 1.0, 6, dtype=np.float32))
    assert np.array_equal(run.value(name, "forward", "output.0"), work(hidden).asnumpy())


def test_an_alias_a_program_imported_is_seen(tmp_path: Path) -> None:
    run = worked(tmp_path, aliases.work, f32(2, 6), level="L1")
    names = [c["name"] for c in run.calls]
    assert names.count("mindspore.mint.nn.functional.softmax") == 1
    assert names.count("mindspore.mint.exp") == 1


def test_what_was_written_in_place_is_the_output(tmp_path: Path) -> None:
    def work(h: Tensor) -> Tensor:
        y = h * 1
        y[0] = 7.0
        y.add_(1.0)
        return y

    x = f32(2, 6)
    run = worked(tmp_path, work, x, level="L1")
    hidden = x.asnumpy() * np.linspace(0.1, 1.0, 6, dtype=np.float32)
    before = run.value("mindspore.Tensor.__setitem__", "forward", "input.0")
    assert np.array_equal(before, hidden)
    hidden[0] = 7
    assert np.array_equal(run.value("mindspore.Tensor.__setitem__", "forward", "output.0"), hidden)
    assert np.array_equal(run.value("mindspore.Tensor.add_", "forward", "output.0"), hidden + 1)


def test_threads_have_their_own_place(tmp_path: Path) -> None:
    """A cell called in another thread while the root is under way does not end up inside its cells."""
    watch = Watch()

    def work(h: Tensor) -> Tensor:
        thread = threading.Thread(target=lambda: watch(f32(3)))
        thread.start()
        thread.join()
        return h

    run = worked(tmp_path, work, f32(2, 6), level="L0")
    assert run.facts["num_failures"] == 0
    assert np.array_equal(run.value("after", "forward", "input.0"), run.value("before", "forward", "input.0"))


def test_integers_and_labels_are_kept_with_statistics(tmp_path: Path) -> None:
    model, (ids, _) = GPT(), batch(0)
    run = capture(
        tmp_path / "run",
        lambda: gradients_of(model, ids),
        level="L0",
        task="statistics",
        store_values_of=["integers"],
    )
    assert np.array_equal(run.value("", "forward", "input.0"), ids.asnumpy())
    with pytest.raises(AssertionError, match="no values stored"):
        run.value("", "forward", "output.0")


def test_save_takes_tensors_and_numbers(tmp_path: Path) -> None:
    kept = f32(4)
    tracer = trueup.Tracer(tmp_path / "run", framework="mindspore", task="tensor")
    with tracer:
        gradients_of(Body(lambda h: (tracer.save("mine", kept), tracer.save("number", 3), h)[2]), f32(2, 6))
    run = Captured(tmp_path / "run")
    assert np.array_equal(run.value("save.mine", "forward", "output.0"), kept.asnumpy())
    scalars = run.trace.scalars(0) if hasattr(run.trace, "scalars") else None
    assert scalars is not None
