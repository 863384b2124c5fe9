"""What is recorded is what was there: values, statistics and digests at the time of the call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trueup
from tests.adapters.torch.reading import Captured, capture, total, train_once
from trueup.numerics._native import EVERYTHING, summarise_by_definition

pytestmark = pytest.mark.torch


def of(values: Tensor) -> np.void:
    return summarise_by_definition(values.detach().numpy(), EVERYTHING)


class Watch(nn.Module):
    """Returns what it is given: a place to look at a tensor."""

    def forward(self, x: Any) -> Any:
        return x


class Body(nn.Module):
    """A root with a parameter, a watch before and one after, and whatever a test does in between."""

    def __init__(self, work: Callable[[Tensor], Tensor], size: int = 6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.1, 1.0, size))
        self.before, self.after = Watch(), Watch()
        self._work = work

    def forward(self, x: Tensor) -> Tensor:
        hidden = x * self.weight
        self.before(hidden)
        hidden = self._work(hidden)
        self.after(hidden)
        return hidden


def watched(tmp_path: Path, work: Callable[[Tensor], Tensor], x: Tensor, **options: Any) -> Captured:
    return capture(tmp_path / "run", lambda: train_once(Body(work, x.shape[-1]), x), **options)


@dataclass
class Out:
    logits: Tensor
    hidden: tuple[Any, ...]
    nothing: Tensor | None = None


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, pair: Pair, *, options: dict[str, Any], mask: Tensor | None = None) -> Out:
        first = x * self.weight + pair.left
        return Out(logits=first, hidden=(pair.right, None, {"deep": [first * 2, options["scale"]]}))


def test_nested_arguments_and_results(tmp_path: Path) -> None:
    x, left, right = torch.randn(2, 3), torch.randn(3), torch.randn(2)
    options = {"scale": 0.5, "table": torch.arange(4), "none": None}
    run = capture(
        tmp_path / "run",
        lambda: Nested()(x, Pair(left, right), options=options, mask=None).logits.sum().backward(),
        level="L0",
    )
    assert torch.equal(run.value("", "forward", "input.0"), x)
    assert torch.equal(run.value("", "forward", "input.1.left"), left)
    assert torch.equal(run.value("", "forward", "input.1.right"), right)
    assert torch.equal(run.value("", "forward", "input.options.table"), options["table"])
    assert torch.equal(run.value("", "forward", "output.logits"), x + left)
    assert torch.equal(run.value("", "forward", "output.hidden.0"), right)
    assert torch.equal(run.value("", "forward", "output.hidden.2.deep.0"), (x + left) * 2)
    assert run.arguments("", kind="module") == {"input.options.scale": 0.5}
    assert not [s for s in run.slots("", "forward") if "nothing" in s or "mask" in s or "none" in s]


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(3.5),
        torch.zeros(0),
        torch.zeros(2, 0, 3),
        torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40]),
        torch.randn(3, 4, 5).permute(2, 0, 1)[::2],
        torch.randn(7, 3)[:, 1],
        torch.randn(5, 1).expand(5, 4),
        torch.randn(70, 80).bfloat16().float(),
        torch.arange(-5, 5),
        torch.tensor([True, False]),
        torch.randn(4, dtype=torch.float64),
        torch.randn(4, dtype=torch.complex64),
        torch.randn(4, dtype=torch.complex64).conj(),
    ],
    ids=lambda x: f"{str(x.dtype)[6:]}-{'x'.join(map(str, x.shape)) or '0d'}",
)
def test_statistics_digest_and_values_are_the_definition_s(x: Tensor, tmp_path: Path) -> None:
    body = Body(lambda h: h)

    def program() -> None:
        Watch()(x)
        train_once(body, torch.ones(6))
        Watch()(x)

    run = capture(tmp_path / "run", program, level="L0", crc32=True)
    record = run.one("Watch", "forward", "input.0")
    resolved = x.resolve_conj()
    expected = of(resolved)
    summary = record["summary"]
    assert summary["shape"] == list(x.shape)
    assert summary["dtype"] == str(x.dtype).removeprefix("torch.")
    for name in ("numel", "num_nan", "num_posinf", "num_neginf", "num_zero", "digest", "crc32"):
        assert summary[name] == expected[name], name
    size = (
        float(expected["l2_norm"]) / max(x.numel(), 1) ** 0.5
    )  # a mean that cancels is as exact as its terms
    for name in ("minimum", "maximum", "mean", "l2_norm", "smallest_nonzero"):
        number = float(expected[name])
        near = pytest.approx(number, abs=1e-6 * size if name == "mean" and np.isfinite(size) else None)
        assert summary[name] == (None if np.isnan(number) else near), name
    assert np.allclose(np.frombuffer(summary["sketch"], "<f4"), expected["sketch"], rtol=1e-5, equal_nan=True)
    stored = run.values(record)
    as_bytes = [t.contiguous().reshape(-1).view(torch.uint8) for t in (stored, resolved)]
    assert torch.equal(*as_bytes)


def test_in_place_operations_have_inputs_from_before_and_outputs_from_after(tmp_path: Path) -> None:
    x = torch.randn(2, 6)

    def work(hidden: Tensor) -> Tensor:
        return hidden.mul_(3.0)

    run = watched(tmp_path, work, x)
    before = x * torch.linspace(0.1, 1.0, 6)
    assert torch.equal(run.value("torch.Tensor.mul_", "forward", "input.0"), before)
    assert torch.equal(run.value("torch.Tensor.mul_", "forward", "output.0"), before * 3)
    assert torch.equal(run.value("before", "forward", "output.0"), before)
    assert torch.equal(run.value("after", "forward", "input.0"), before * 3)


BIG = torch.randn(64, 128)
"""above the size from which summaries are remembered"""


def _written_by_numpy(hidden: Tensor) -> Tensor:
    hidden.detach().numpy()[17, 31] = 12345.0
    return hidden


def _written_by_data(hidden: Tensor) -> Tensor:
    hidden.data[17, 31] = 12345.0
    return hidden


def _written_through_a_view(hidden: Tensor) -> Tensor:
    hidden.detach()[10:20][7, 31:32].fill_(12345.0)
    return hidden


def _written_by_storage(hidden: Tensor) -> Tensor:
    alias = torch.empty(0).set_(hidden.detach().untyped_storage(), 0, hidden.shape, hidden.stride())
    alias[17, 31] = 12345.0
    return hidden


def _written_in_the_storage(hidden: Tensor) -> Tensor:
    flat = torch.full((1,), 12345.0).untyped_storage()
    at = (17 * 128 + 31) * 4
    storage = hidden.detach().untyped_storage()
    for i in range(4):
        storage[at + i] = flat[i]
    return hidden


def _written_in_a_thread(hidden: Tensor) -> Tensor:
    def write() -> None:
        hidden.detach().numpy()[17, 31] = 12345.0

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    return hidden


WRITES = [
    _written_by_numpy,
    _written_by_data,
    _written_through_a_view,
    _written_by_storage,
    _written_in_the_storage,
    _written_in_a_thread,
]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("write", WRITES, ids=lambda w: w.__name__)
def test_a_write_the_version_counter_does_not_see_is_seen(
    write: Callable[[Tensor], Tensor], level: str, tmp_path: Path
) -> None:
    def work(hidden: Tensor) -> Tensor:
        return write(hidden) + 0 if level == "L1" else write(hidden)

    run = watched(tmp_path, work, BIG, level=level, task="statistics")
    before = BIG * torch.linspace(0.1, 1.0, 128)
    after = before.clone()
    after[17, 31] = 12345.0
    if level == "L1":
        found = run.one("torch.Tensor.add", "forward", "input.0")
        assert found["summary"]["digest"] == of(after)["digest"]
        return
    assert run.one("before", "forward", "input.0")["summary"]["digest"] == of(before)["digest"]
    assert run.one("after", "forward", "input.0")["summary"]["digest"] == of(after)["digest"]
    assert run.one("", "forward", "output.0")["summary"]["digest"] == of(after)["digest"]


def test_views_and_what_shares_their_storage(tmp_path: Path) -> None:
    def work(hidden: Tensor) -> Tensor:
        return torch.cat([hidden[:32].t().reshape(-1), hidden[32:].reshape(-1)]).reshape(64, 128)

    run = watched(tmp_path, work, BIG)
    hidden = BIG * torch.linspace(0.1, 1.0, 128)
    slices = [run.values(r) for r in run.find("torch.Tensor.__getitem__", "forward", "output.0")]
    assert torch.equal(slices[0], hidden[:32])
    assert torch.equal(slices[1], hidden[32:])
    assert torch.equal(run.value("torch.Tensor.t", "forward", "output.0"), hidden[:32].t())


def test_memory_freed_and_used_again_is_another_tensor(tmp_path: Path) -> None:
    def work(hidden: Tensor) -> Tensor:
        watch = Watch()
        for i in range(4):
            watch(torch.full((64, 128), float(i)))
        return hidden

    run = watched(tmp_path, work, BIG, level="L0")
    found = [r["summary"]["maximum"] for r in run.find("<Watch>", "forward", "input.0")]
    assert found == [0.0, 1.0, 2.0, 3.0]


def test_modules_made_in_the_forward_are_named_by_what_they_are(tmp_path: Path) -> None:
    def work(hidden: Tensor) -> Tensor:
        hidden = nn.Tanh()(hidden)
        hidden = nn.Sigmoid()(hidden)
        return nn.Softplus()(hidden)

    run = watched(tmp_path, work, BIG, level="L0")
    made = [c["name"] for c in run.calls if c["name"].startswith("<")]
    assert made == ["<Tanh>", "<Sigmoid>", "<Softplus>"]


@pytest.mark.parametrize("fused", [True, False])
def test_the_optimizer_s_writes_are_seen(fused: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 128)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=fused)
    weights: list[Tensor] = []
    states: list[dict[str, Tensor]] = []

    def program() -> None:
        for _ in range(2):
            weights.append(model.weight.detach().clone())
            model(torch.ones(3, 64)).square().mean().backward()
            optimizer.step()
            weights.append(model.weight.detach().clone())
            states.append({k: v.clone() for k, v in optimizer.state[model.weight].items()})
            optimizer.zero_grad()

    capture(tmp_path / "run", program, level="L0")
    for step in range(2):
        run = Captured(tmp_path / "run", step)
        assert torch.equal(run.value("weight", "param", "value"), weights[2 * step])
        assert torch.equal(run.value("weight", "optimizer", "param"), weights[2 * step + 1])
        for name, value in states[step].items():
            assert torch.equal(run.value("weight", "optimizer", f"state.{name}"), value), name
    assert not torch.equal(weights[0], weights[1])


def test_out_of_place_and_out_arguments(tmp_path: Path) -> None:
    def work(hidden: Tensor) -> Tensor:
        room = torch.empty(2, 6)
        with torch.no_grad():
            torch.mul(hidden, 2.0, out=room)
        return hidden + room

    x = torch.randn(2, 6)
    run = watched(tmp_path, work, x)
    hidden = x * torch.linspace(0.1, 1.0, 6)
    assert torch.equal(run.value("torch.mul", "forward", "output.0"), hidden * 2)
    assert run.slots("torch.mul", "forward") == ["input.0", "output.0"]
    assert run.slots("torch.empty", "forward") == []


def test_uninitialised_memory_is_not_summarised(tmp_path: Path) -> None:
    def work(hidden: Tensor) -> Tensor:
        torch.empty_like(hidden)
        hidden.new_empty(3).fill_(2.0)
        return hidden

    run = watched(tmp_path, work, BIG)
    for name in ("torch.empty_like", "torch.Tensor.new_empty"):
        assert [s for s in run.slots(name, "forward") if s.startswith("output")] == []
    assert run.slots("torch.Tensor.fill_", "forward") == ["output.0"]


def test_memory_of_which_a_part_is_written(tmp_path: Path) -> None:
    def work(hidden: Tensor) -> Tensor:
        room = torch.empty(6)
        room[:2] = torch.ones(2)
        room[2:4].copy_(torch.ones(2))
        room[torch.tensor([4, 5])] = torch.ones(2)
        room[0] = 5.0
        return hidden * room

    run = watched(tmp_path, work, torch.randn(2, 6))
    writes = run.find("torch.Tensor.__setitem__", "forward", "input.0")
    assert [r["reason"] for r in writes] == ["uninitialised memory"] * 2 + [None]
    assert torch.equal(run.values(writes[2]), torch.ones(6))
    written = run.find("torch.Tensor.__setitem__", "forward", "output.0")
    assert run.values(written[2]).tolist() == [5, 1, 1, 1, 1, 1]
    assert run.one("torch.Tensor.__getitem__", "forward", "input.0")["reason"] == "uninitialised memory"
    assert run.find("torch.Tensor.mul", "forward", "input.1")[0]["reason"] is None


def test_shared_content_is_stored_once_and_read_everywhere(tmp_path: Path) -> None:
    run = watched(tmp_path, lambda h: h, BIG)
    rows = {id(r["summary"]): r["summary"] for r in run.records if r["summary"]}.values()
    assert len({(r["digest"], r["dtype"], str(r["shape"])) for r in rows}) == len(rows)


def test_the_loss_is_recorded(tmp_path: Path) -> None:
    model = Body(lambda h: h)
    x = torch.randn(2, 6)
    run = capture(tmp_path / "run", lambda: F.mse_loss(model(x), torch.zeros(2, 6)).backward())
    expected = F.mse_loss(model(x), torch.zeros(2, 6))
    assert run.value("loss", "loss", "value") == expected
    assert run.trace.scalars(0)[0]["loss"] == expected.item()


def test_total_weighs_every_element() -> None:
    x = torch.randn(3, requires_grad=True)
    total({"a": x, "b": (x * 2,)}).backward()
    assert x.grad is not None
    assert x.grad.unique().numel() == 3


def test_weights_written_between_the_update_and_the_next_step_are_summarised_anew(tmp_path: Path) -> None:
    def largest(*, meddle: bool) -> tuple[float, float]:
        """Of the weight, after the update of step 0 and at the start of step 1."""
        torch.manual_seed(0)
        model = nn.Linear(128, 128)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        path = tmp_path / f"run-{meddle}"
        with trueup.Tracer(path, steps="0-1"):
            for _ in range(2):
                model(torch.ones(4, 128)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if meddle:
                    model.weight.data[5, 7] = 40.0
        after = Captured(path, 0).one("weight", "optimizer", "param")["summary"]
        start = Captured(path, 1).one("weight", "param", "value")["summary"]
        return after["maximum"], start["maximum"]

    after, start = largest(meddle=False)
    assert after == start < 1.0, "what the update left is what the next step begins with"
    after, start = largest(meddle=True)
    assert after < 1.0
    assert start == 40.0
