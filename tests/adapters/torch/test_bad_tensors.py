"""Tensors of every odd kind are recorded with what they hold, or the reason why not; none is a failure."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.adapters.torch.reading import Captured, capture
from trueup.store import Trace

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*(beta|prototype|ComplexHalf|experimental|deprecated).*"),
]


class Look(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Root(nn.Module):
    def __init__(self, make: Callable[[], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.look = Look()
        self._make = make

    def forward(self) -> Tensor:
        self.look(self._make())
        return self.weight.sum()


def looked_at(make: Callable[[], Tensor], path: Path, **options: Any) -> Captured:
    return capture(path / "run", lambda: Root(make)().backward(), **{"level": "L0", **options})


DENSE = torch.tensor([[1.0, 0.0, -2.0], [0.0, 0.0, 3.0]])


def _uint4() -> Tensor:
    return torch.tensor([[1, 2], [250, 4]], dtype=torch.uint8).view(torch.uint4)


FALLBACKS: dict[str, tuple[Callable[[], Tensor], str, Tensor]] = {
    "sparse_coo": (DENSE.to_sparse, "sparse_coo: its stored values", torch.tensor([1.0, -2.0, 3.0])),
    "sparse_csr": (DENSE.to_sparse_csr, "sparse_csr: its stored values", torch.tensor([1.0, -2.0, 3.0])),
    "sparse_csc": (DENSE.to_sparse_csc, "sparse_csc: its stored values", torch.tensor([1.0, -2.0, 3.0])),
    "quantised": (
        lambda: torch.quantize_per_tensor(DENSE, 0.5, 0, torch.qint8),
        "quantised: its integers",
        torch.tensor([[2, 0, -4], [0, 0, 6]], dtype=torch.int8),
    ),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=torch.jagged),
        "nested: its packed values",
        torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]),
    ),
    "nested strided": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]),
        "nested: its packed values",
        torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]),
    ),
    "uint4": (_uint4, "uint4: its bytes", torch.tensor([1, 2, 250, 4], dtype=torch.uint8)),
    "float4": (
        lambda: torch.tensor([1, 2, 250], dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "float4_e2m1fn_x2: its bytes",
        torch.tensor([1, 2, 250], dtype=torch.uint8),
    ),
    "float8_e8m0fnu": (
        lambda: torch.tensor([[1, 2, 250]], dtype=torch.uint8).view(torch.float8_e8m0fnu).t(),
        "float8_e8m0fnu: its bytes",
        torch.tensor([1, 2, 250], dtype=torch.uint8),
    ),
    "complex32": (
        lambda: torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float16).view(torch.complex32),
        "complex32: its bytes",
        torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float16).view(torch.uint8),
    ),
    "complex32 scalar": (
        lambda: torch.tensor([1.0, 2.0], dtype=torch.float16).view(torch.complex32)[0],
        "complex32: its bytes",
        torch.tensor([1.0, 2.0], dtype=torch.float16).view(torch.uint8),
    ),
}


@pytest.mark.parametrize("kind", FALLBACKS)
def test_a_stated_fallback(kind: str, tmp_path: Path) -> None:
    make, reason, values = FALLBACKS[kind]
    run = looked_at(make, tmp_path)
    record = run.one("look", "forward", "input.0")
    assert record["reason"] == reason
    assert torch.equal(run.values(record).flatten(), values.flatten())


REFUSED: dict[str, Callable[[], Tensor]] = {
    "a meta tensor holds no values": lambda: torch.empty(3, device="meta"),
    "FakeTensor: no values": lambda: _fake(),
    "inside a function transform (vmap, grad): no values of its own": lambda: _mapped(),
}


def _of_shapes_alone() -> Tensor:
    """As DTensor works out shapes: the second time, a view is made of the cached one's."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        for _ in range(2):
            torch.ones(2, 3).view(3, 2)
            torch.empty(0).set_(torch.ones(4).untyped_storage())
    return torch.ones(2)


def test_storages_without_memory_have_no_pointer_that_is_asked_for(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        captured = looked_at(_of_shapes_alone, tmp_path, task="tensor")
    assert not [one for one in warned if "data pointer" in str(one.message)]
    assert not captured.trace.rank_facts(0)["failures"]


def _fake() -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(3)


def _freed(numel: int) -> Tensor:
    tensor = torch.ones(numel)
    tensor.untyped_storage().resize_(0)
    return tensor


def _mapped() -> Tensor:
    look = Look()
    torch.func.vmap(lambda x: look(x))(torch.ones(3, 2))
    return torch.ones(1)


@pytest.mark.parametrize("numel", [1, 100, 10_000])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_memory_that_has_been_freed(task: str, numel: int, tmp_path: Path) -> None:
    """As FSDP frees weights between their uses."""
    run = looked_at(lambda: _freed(numel), tmp_path, task=task, level="mix")
    assert run.one("look", "forward", "input.0")["reason"].startswith("its memory has been freed")


def test_a_parameter_whose_memory_has_been_freed(tmp_path: Path) -> None:
    model = Root(lambda: torch.ones(1))
    model.apart = nn.Parameter(_freed(8))
    run = capture(tmp_path / "run", lambda: model().backward(), level="L0")
    assert run.one("apart", "param", "value")["summary"] is None
    assert run.one("weight", "param", "value")["summary"] is not None


@pytest.mark.parametrize("reason", REFUSED)
def test_a_stated_reason(reason: str, tmp_path: Path) -> None:
    run = looked_at(REFUSED[reason], tmp_path)
    found = [r for r in run.records if r["reason"] == reason]
    assert found
    assert all(r["summary"] is None for r in found)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.uint16])
def test_narrow_types_are_exact(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.tensor([0.5, 1.0, 2.0, 3.0]).to(dtype)
    run = looked_at(lambda: values, tmp_path)
    record = run.one("look", "forward", "input.0")
    assert record["reason"] is None
    assert record["summary"]["dtype"] == str(dtype).removeprefix("torch.")
    assert torch.equal(run.values(record).view(torch.uint8), values.view(torch.uint8))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_nothing_but_bad_numbers_anywhere(bad: float, level: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    for p in model.parameters():
        nn.init.constant_(p, bad)
    optimizer = torch.optim.AdamW(model.parameters())

    def program() -> None:
        model(torch.full((2, 4), bad)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    run = capture(tmp_path / "run", program, level=level)
    summary = run.one("", "forward", "input.0")["summary"]
    assert summary["minimum"] is summary["maximum"] is summary["mean"] is summary["l2_norm"] is None
    assert summary["num_nan"] + summary["num_posinf"] + summary["num_neginf"] == 8
    assert len(run.trace.scalars(0)) == 1


@pytest.mark.slow
def test_more_than_two_to_the_31_elements(tmp_path: Path) -> None:
    numel = 2**31 + 5
    run = looked_at(
        lambda: torch.tensor([3], dtype=torch.int8).expand(numel),
        tmp_path,
        task="statistics",
        sketch=False,
        data_mode={"forward", "input"},
    )
    summary = run.one("look", "forward", "input.0")["summary"]
    assert summary["numel"] == numel
    assert summary["shape"] == [numel]
    assert summary["mean"] == 3.0
    assert summary["l2_norm"] == pytest.approx(3.0 * numel**0.5)


@pytest.mark.parametrize(
    "name", ["lone\udc80surrogate", "<script>alert(1)</script>", 'quote"\\ünï', "日本", "a/b"]
)
def test_names_of_every_kind(name: str, tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(name, nn.Linear(2, 2))

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {name: self._modules[name](x)}  # type: ignore[misc]

    def program() -> None:
        Named()(torch.ones(1, 2))[name].sum().backward()

    run = capture(tmp_path / "run", program, level="mix")
    shown = name.encode("utf-8", "backslashreplace").decode()
    assert run.value(shown, "forward", "output.0", kind="module").shape == (1, 2)
    assert run.one("", "forward", f"output.{shown}")
    assert any(p["fqn"].startswith(name) for p in run.facts["parameters"])
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_parameters_that_are_not_there_yet(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1))

    def program() -> None:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            for p in model.parameters():
                p.grad = None

    capture(tmp_path / "run", program, level="mix")
    second = Captured(tmp_path / "run", 1)
    assert second.one("0.weight", "param", "value")["summary"]["shape"] == [4, 3]


def test_a_long_list_of_arguments_is_not_listed(tmp_path: Path) -> None:
    run = looked_at(lambda: torch.tensor(list(range(5000))), tmp_path, level="mix")
    assert run.arguments("torch.tensor") == {"input.0": "<list of 5000>"}


def test_the_trace_is_readable_by_plain_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    run = looked_at(lambda: torch.arange(5.0), tmp_path)
    (chunk,) = (tmp_path / "run").glob("step_000000/rank_00000/tensors/*.safetensors")
    key = run.one("look", "forward", "input.0")["summary"]["tensor"]
    assert np.array_equal(load_file(chunk)[key], np.arange(5.0, dtype=np.float32))
    assert isinstance(Trace(tmp_path / "run").manifest["schema_version"], int)
