"""Every option keeps what it says, and what a call is called, given and called from."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import trueup
from tests.adapters.torch.reading import Captured, capture
from trueup.store import Trace, step_view

pytestmark = pytest.mark.torch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = F.softmax(self.first(x), dim=-1)
        for block in self.blocks:
            x = block(x) + 1
        return self.second(x).view(-1, 4)[0].sum()


def train(steps: int = 1) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).backward()
        optimizer.step()
        optimizer.zero_grad()


def names(run: Captured, kind: str) -> list[str]:
    return [c["name"] for c in run.calls if c["kind"] == kind]


def test_names_ordinals_and_arguments_of_api_calls(tmp_path: Path) -> None:
    run = capture(tmp_path / "run", train, level="L1")
    assert names(run, "api") == [
        "torch.nn.functional.linear",
        "torch.nn.functional.softmax",
        *["torch.nn.functional.linear", "torch.nn.functional.relu", "torch.Tensor.add"] * 2,
        "torch.nn.functional.linear",
        "torch.Tensor.view",
        "torch.Tensor.__getitem__",
        "torch.Tensor.sum",
    ]
    linear = [c for c in run.calls if c["name"] == "torch.nn.functional.linear"]
    assert [c["global_ordinal"] for c in linear] == [0, 1, 2, 3]
    assert [c["ordinal"] for c in linear] == [0, 0, 0, 0]
    assert [run.calls[c["parent"]]["name"] for c in linear] == ["first", "blocks.0.0", "blocks.1.0", "second"]
    adds = [c for c in run.calls if c["name"] == "torch.Tensor.add"]
    assert [(c["ordinal"], json.loads(c["arguments"])) for c in adds] == [
        (0, {"input.1": 1}),
        (1, {"input.1": 1}),
    ]
    assert run.arguments("torch.nn.functional.softmax")["input.dim"] == -1
    assert run.arguments("torch.Tensor.view") == {"input.1": -1, "input.2": 4}
    assert run.arguments("torch.Tensor.__getitem__") == {"input.1": 0}
    assert not [r for r in run.records if r["site"]["kind"] == "module"]


def test_levels(tmp_path: Path) -> None:
    runs = {level: capture(tmp_path / level, train, level=level) for level in ("L0", "L1", "mix")}
    assert names(runs["L0"], "api") == []
    assert names(runs["mix"], "api") == names(runs["L1"], "api")
    assert {r["site"]["kind"] for r in runs["L0"].records} == {"module", "parameter", "loss"}
    assert {r["site"]["kind"] for r in runs["L1"].records} == {"api", "parameter", "loss"}
    assert set(runs["mix"].sites()) == set(runs["L0"].sites()) | set(runs["L1"].sites())


def test_questions_about_a_tensor_are_no_calls(tmp_path: Path) -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> Tensor:
            w = self.weight
            assert (w.size(), w.shape, w.dim(), w.dtype, len(w), w.is_contiguous(), w.device) is not None
            assert isinstance(w[0].item(), float)
            return w.exp().sum()

    run = capture(tmp_path / "run", lambda: Asks()().backward(), level="L1")
    assert names(run, "api") == ["torch.Tensor.__getitem__", "torch.Tensor.exp", "torch.Tensor.sum"]


def test_source_lines_the_program_s_own_first(tmp_path: Path) -> None:
    run = capture(tmp_path / "run", lambda: train(), level="mix")
    softmax = run.one("torch.nn.functional.softmax", "forward", "input.0")["site"]
    frames = run.stacks[softmax["stack"]]
    assert frames[0].startswith(os.path.relpath(__file__)), "named from where the program was started"
    assert frames[0].endswith("forward | x = F.softmax(self.first(x), dim=-1)")
    assert "model(torch.ones(2, 4)).backward()" in frames[1]
    assert not [f for f in frames if "site-packages/torch" in f or "src/trueup" in f]
    blocks = [c for c in run.calls if c["name"] in ("blocks.0", "blocks.1")]
    assert blocks[0]["stack"] == blocks[1]["stack"]
    inner = run.one(
        "torch.nn.functional.relu", "forward", "input.0", ordinal=0, parent=_call(run, "blocks.0.1")
    )
    assert "x = block(x) + 1" in run.stacks[inner["site"]["stack"]][0]
    assert _call(run, "first") != _call(run, "second")


def _call(run: Captured, name: str) -> int:
    (call,) = [c["call"] for c in run.calls if c["name"] == name and c["kind"] == "module"]
    return int(call)


def test_without_stacks(tmp_path: Path) -> None:
    run = capture(tmp_path / "run", train, stacks=False)
    assert run.stacks == {}
    assert {c["stack"] for c in run.calls} == {None}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [("all", [0, 1, 2, 3]), ("1", [1]), ("0,2-3", [0, 2, 3]), ("7", []), ("0|2", [0, 2])],
)
def test_steps(steps: str, expected: list[int], tmp_path: Path) -> None:
    with trueup.Tracer(tmp_path / "run", steps=steps):
        train(4)
    trace = Trace(tmp_path / "run")
    assert list(trace.steps()) == expected
    assert [line["step"] for line in trace.scalars(0)] == [0, 1, 2, 3]
    assert [line["loss"] is None for line in trace.scalars(0)] == [False] * 4


def test_other_ranks_only(tmp_path: Path) -> None:
    with trueup.Tracer(tmp_path / "run", steps="all", ranks="1-3"):
        train(2)
    assert list(Trace(tmp_path / "run").steps()) == []
    assert len(Trace(tmp_path / "run").scalars(0)) == 2


def test_names_to_keep(tmp_path: Path) -> None:
    run = capture(tmp_path / "run", train, names=("blocks.1", "softmax"))
    kept = {r["site"]["name"] for r in run.records if r["phase"] == "forward"}
    assert kept == {
        "blocks.1",
        "blocks.1.0",
        "blocks.1.1",
        "torch.nn.functional.linear",
        "torch.nn.functional.relu",
        "torch.nn.functional.softmax",
    }
    linear = run.find("torch.nn.functional.linear", "forward", "output.0")
    assert [run.calls[r["site"]["parent"]]["name"] for r in linear] == ["blocks.1.0"]


def test_from_one_call_to_another(tmp_path: Path) -> None:
    run = capture(tmp_path / "run", train, level="L0", scope=("blocks.0", "blocks.1.0"))
    kept = [r["site"]["name"] for r in run.records if r["phase"] == "forward" and r["slot"] == "input.0"]
    assert kept == ["blocks.0", "blocks.0.0", "blocks.0.1", "blocks.1", "blocks.1.0"]


@pytest.mark.parametrize(
    ("mode", "phases", "sides"),
    [
        ({"forward", "input"}, {"forward"}, {"input"}),
        ({"forward", "output"}, {"forward"}, {"output"}),
        ({"backward", "input", "output"}, {"backward"}, {"input", "output"}),
        ({"forward", "backward", "output"}, {"forward", "backward"}, {"output"}),
    ],
)
@pytest.mark.parametrize("level", ["L0", "L1"])
def test_data_modes(mode: set[str], phases: set[str], sides: set[str], level: str, tmp_path: Path) -> None:
    run = capture(tmp_path / "run", train, level=level, data_mode=mode)
    found = [r for r in run.records if r["site"]["kind"] in ("module", "api")]
    assert {r["phase"] for r in found} == phases
    assert {r["slot"].partition(".")[0] for r in found} == sides


@pytest.mark.parametrize(
    ("option", "gone"),
    [("backward", "backward"), ("gradients", "param_grad"), ("optimizer", "optimizer")],
)
def test_phases_left_out(option: str, gone: str, tmp_path: Path) -> None:
    whole = capture(tmp_path / "whole", train)
    part = capture(tmp_path / "part", train, **{option: False})
    assert {r["phase"] for r in whole.records} - {r["phase"] for r in part.records} == {gone}


def test_without_digest_and_sketch(tmp_path: Path) -> None:
    run = capture(tmp_path / "run", train, digest=False, sketch=False, task="statistics")
    assert {r["summary"]["digest"] for r in run.records} == {None}
    assert {r["summary"]["sketch"] for r in run.records} == {None}
    assert all(r["summary"]["l2_norm"] is not None for r in run.records)


def test_small_tensors_that_are_alike_share_a_row_with_and_without_digests(tmp_path: Path) -> None:
    rows = []
    for digest in (True, False):
        path = tmp_path / str(digest)
        run = capture(path, train, level="mix", digest=digest, sketch=False, task="statistics")
        rows.append(Trace(path).read(0, 0).summaries.height)
    assert rows[0] == rows[1] < len(run.records)


def test_crc32_is_zlib_s(tmp_path: Path) -> None:
    run = capture(tmp_path / "run", train, crc32=True)
    assert len(run.records) > 50
    for record in run.records:
        assert record["summary"]["crc32"] == zlib.crc32(run.values(record).numpy().tobytes())


def test_values_of_modules_only(tmp_path: Path) -> None:
    run = capture(tmp_path / "run", train, level="mix", task="statistics", store_values_of={"module"})
    stored = {r["site"]["kind"] for r in run.records if r["summary"]["tensor"] is not None}
    missing = [
        r
        for r in run.records
        if r["site"]["kind"] == "module"
        and r["phase"] in ("forward", "backward")
        and not r["summary"]["tensor"]
    ]
    assert "module" in stored
    assert missing == []
    assert any(r["summary"]["tensor"] is None for r in run.records if r["site"]["kind"] == "api")


def test_saved_by_name(tmp_path: Path) -> None:
    with trueup.Tracer(tmp_path / "run", level="L0", steps="all", task="tensor") as tracer:
        model = Net()
        loss = model(torch.ones(2, 4))
        tracer.save("router", torch.arange(3.0))
        tracer.save("temperature", 0.7)
        tracer.save("loss", loss)
        loss.backward()
    run = Captured(tmp_path / "run")
    assert run.value("save.loss", "backward", "output.0").item() == 1
    assert not run.find("save.router", "backward", "output.0")
    assert torch.equal(run.value("save.router", "forward", "output.0"), torch.arange(3.0))
    assert run.trace.scalars(0)[0]["saved"] == {"temperature": 0.7}


@pytest.mark.parametrize("says_steps", [True, False])
@pytest.mark.parametrize("by_hand", [True, False], ids=["update by hand", "optimizer"])
@pytest.mark.parametrize("to_none", [True, False], ids=["taken away", "zeroed"])
@pytest.mark.parametrize("warm", [True, False], ids=["gradients from before", "none"])
def test_every_step_holds_the_functions_outside_of_the_model(
    says_steps: bool, by_hand: bool, warm: bool, to_none: bool, tmp_path: Path
) -> None:
    """Gradients that are cleared before a step's first forward end no step; in place or not, they end one
    whose weights the program updates itself."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if warm:
        model(torch.ones(2, 4)).sum().backward()
    with trueup.Tracer(tmp_path / "run", steps="all", level="mix") as tracer:
        for _ in range(3):
            model.zero_grad(set_to_none=to_none)
            model(torch.ones(2, 4)).square().mean().backward()
            if by_hand:
                with torch.no_grad():
                    for p in model.parameters():
                        assert p.grad is not None
                        p.sub_(0.1 * p.grad)
            else:
                optimizer.step()
            if says_steps:
                tracer.step()
    trace = Trace(tmp_path / "run")
    assert sorted(trace.steps()) == [0, 1, 2]
    found = [step_view(trace, step, 0).name for step in range(3)]
    wanted = {"torch.Tensor.square", "torch.Tensor.mean", *(["torch.Tensor.sub_"] if by_hand else [])}
    assert all(wanted <= set(names) for names in found)


def test_steps_the_program_names(tmp_path: Path) -> None:
    tracer = trueup.Tracer(tmp_path / "run", steps="all", manual_steps=True)
    model = Net()
    for _ in range(3):
        tracer.start()
        for _ in range(2):
            model(torch.ones(2, 4)).backward()
        tracer.step()
    tracer.close()
    trace = Trace(tmp_path / "run")
    assert list(trace.steps()) == [0, 1, 2]
    assert [line["microbatches"] for line in trace.scalars(0)] == [2, 2, 2]


# -- beside other function modes ---------------------------------------


class Counting(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.calls += 1
        return func(*args, **(kwargs or {}))


def _inside(work: Callable[[], None]) -> None:
    with Counting(), torch.device("cpu"):
        work()


def test_modes_of_the_program_keep_their_place(tmp_path: Path) -> None:
    depth = torch._C._len_torch_function_stack()
    with Counting(), torch.device("cpu"):
        tracer = trueup.Tracer(tmp_path / "run", level="mix", steps="all")
        tracer.start()
        train()
    _inside(train)
    before = Counting.calls
    train()
    assert Counting.calls == before
    tracer.close()
    assert torch._C._len_torch_function_stack() <= depth + 1
    assert "torch.nn.functional.softmax" in names(Captured(tmp_path / "run", 2), "api")
