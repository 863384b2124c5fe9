"""Weights in half precision: updated themselves, or as float32 copies that the optimizer holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trueup.adapters.torch.training import UNSEEN_UPDATE
from trueup.comparing.run import compare
from trueup.diagnosing.pipeline import diagnose
from trueup.diagnosing.stages.gaps import _held_gap
from trueup.diagnosing.update_rule import Update
from trueup.importers import open_trace
from trueup.store import step_view
from trueup.types.codes import StagesCode as Stages
from trueup.types.codes import VerdictCode, WeightsCode
from trueup.types.codes.kinds import CauseCode
from trueup.types.finding import Stage
from trueup.types.reason import Reason, reason

PROGRAM = """
import sys
import torch

kind = sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).bfloat16()
weights = list(model.parameters())
if kind in ("kept", "kept late"):
    with torch.no_grad():
        held = [weight.float() * (1 + 0.001 * torch.randn(weight.shape)) for weight in weights]
        for weight, one in zip(weights, held):
            weight.copy_(one)
            one.copy_(weight if kind == "kept late" else one).requires_grad_()
elif "loaded" in kind or kind in ("copies", "copied back", "resting", "coarse state"):
    held = [weight.detach().float().clone().requires_grad_() for weight in weights]
elif kind == "something else":
    held = [torch.zeros(3, 5, requires_grad=True) for _ in weights]
else:
    held = weights
if "loaded" in kind:
    numbers = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight, one in zip(weights, held):
            weight.add_(0.1 * torch.randn(weight.shape, generator=numbers))
            if kind == "loaded" or (kind == "last loaded later" and weight is not weights[2]):
                one.copy_(weight)
optimizer = torch.optim.AdamW(held, lr=0.0 if kind == "resting" else 1e-2)
for step in range(2):
    x = torch.randn(8, 16).bfloat16()
    model(x).float().square().mean().backward()
    for weight, one in zip(weights, held):
        if one is not weight:
            one.grad = weight.grad.float() if one.shape == weight.shape else torch.ones_like(one)
    optimizer.step()
    if kind not in ("weights", "something else"):
        with torch.no_grad():
            for weight, one in zip(weights, held):
                weight.copy_(one)
                if kind == "copied back":
                    one.copy_(weight)
    if kind == "coarse state":
        for state in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].copy_(state[name].bfloat16())
    model.zero_grad()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masters")
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    kinds = (
        "copies",
        "copied back",
        "weights",
        "something else",
        "resting",
        "coarse state",
        "kept",
        "kept late",
    )
    for kind in (*kinds, "loaded", "loaded later", "last loaded later"):
        command = [sys.executable, "-m", "trueup", "capture", "-o", str(folder / kind)]
        options = ["--preset", "diagnose", "--", sys.executable, str(folder / "program.py"), kind]
        subprocess.run([*command, *options], check=True, capture_output=True)
    return folder


ADDED_UP = """
import sys
import torch

kind = sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).bfloat16()
weights = list(model.parameters())
copies = [weight.detach().float().requires_grad_() for weight in weights]
sums = [torch.zeros_like(weight if kind == "coarse" else copy) for weight, copy in zip(weights, copies)]
optimizer = torch.optim.AdamW(copies, lr=1e-2)
for step in range(3):
    for microbatch in range(4):
        model(torch.randn(8, 16).bfloat16()).float().square().mean().backward()
        for weight, total in zip(weights, sums):
            total.add_(weight.grad)
            weight.grad = None
    for copy, total in zip(copies, sums):
        copy.grad = total.float()
        total.zero_()
    optimizer.step()
    with torch.no_grad():
        for weight, copy in zip(weights, copies):
            weight.copy_(copy)
            if kind == "forgotten":
                copy.copy_(weight)
"""
BUFFERED = """
import sys
import torch

kind = sys.argv[1]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
weights = list(model.parameters())
sums = [torch.zeros_like(weight) for weight in weights]
optimizer = torch.optim.AdamW(weights, lr=1e-2)
for step in range(3):
    for microbatch in range(2):
        model(torch.randn(8, 16)).square().mean().backward()
        for weight, total in zip(weights, sums):
            if kind in ("buffered", "last"):
                total.copy_(weight.grad if kind == "last" else total + weight.grad)
            if kind != "grad" and not (kind == "dropped" and microbatch):
                weight.grad = None
    if kind in ("buffered", "last"):
        for weight, total in zip(weights, sums):
            weight.grad = total.clone()
            total.zero_()
    optimizer.step()
    optimizer.zero_grad()
"""
UPDATED = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(16, 4)
unused = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
moments = [torch.zeros_like(weight) for weight in model.parameters()]
for step in range(3):
    model(torch.randn(8, 16)).square().mean().backward()
    for weight, moment in zip(model.parameters(), moments):
        moment.mul_(0.9).add_(weight.grad, alpha=0.1)
        weight.data -= 0.1 * moment
        weight.grad = None
"""


BY_HAND = """
import sys
import torch

how, num = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
weights = list(model.parameters())
sums = [torch.zeros_like(weight) for weight in weights]
moments = [torch.zeros_like(weight) for weight in weights]
for step in range(3):
    for microbatch in range(num):
        model(torch.randn(8, 16)).square().mean().backward()
        for weight, total in zip(weights, sums):
            total += weight.grad
            weight.grad = None
    with torch.no_grad():
        for weight, total, moment in zip(weights, sums, moments):
            moment.mul_(0.9).add_(total, alpha=0.1)
            if how == "data":
                weight.data -= 0.1 * moment
            else:
                weight.sub_(moment, alpha=0.1)
            total.zero_()
"""
HELD_IN_PART = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
for step in range(3):
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    model.zero_grad()
"""
FLAT = """
import sys
import torch
import trueup

how, marks = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
weights = list(model.parameters())
master = torch.cat([weight.detach().flatten() for weight in weights])
gradient, local, moment = (torch.zeros_like(master) for _ in range(3))
tracer = trueup.Tracer("unused", manual_steps=marks == "marked")
if marks == "marked":
    tracer.start()
for step in range(3):
    for microbatch in range(2):
        model(torch.randn(8, 16)).square().mean().backward()
        sums = local if how == "later" else gradient
        for weight, part in zip(weights, sums.split([weight.numel() for weight in weights])):
            part += weight.grad.flatten()
            weight.grad = None
    gradient += local
    local.zero_()
    moment.mul_(0.9).add_(gradient, alpha=0.1)
    master -= 0.1 * moment
    gradient.zero_()
    for weight, part in zip(weights, master.split([weight.numel() for weight in weights])):
        weight.data.copy_((part.flip(0) if how == "backwards" else part).view_as(weight))
    if marks == "marked":
        tracer.step()
"""


def captured(folder: Path, program: str, *words: str) -> Path:
    (folder / "program.py").write_text(program, encoding="utf-8")
    out = folder / f"run {len(list(folder.iterdir()))}"
    command = [sys.executable, "-m", "trueup", "capture", "-o", str(out), "--preset", "diagnose", "--"]
    subprocess.run(
        [*command, sys.executable, str(folder / "program.py"), *words], check=True, capture_output=True
    )
    return out


def test_a_step_ends_with_the_update_of_its_copies(tmp_path: Path) -> None:
    """A program that adds up gradients in buffers of its own has taken them away after each microbatch."""
    run = open_trace(captured(tmp_path, ADDED_UP, "fine"))
    assert sorted(run.steps()) == [0, 1]
    assert [max(step_view(run, step, 0).microbatch) for step in (0, 1)] == [3, 3]
    compared = {
        kind: compare(captured(tmp_path, ADDED_UP, kind), run.path)
        for kind in ("fine", "coarse", "forgotten")
    }
    assert {kind: one.exit_code for kind, one in compared.items()} == {"fine": 0, "coarse": 1, "forgotten": 1}


def test_buffers_that_the_weights_own_gradients_are_added_up_in(tmp_path: Path) -> None:
    reference = captured(tmp_path, BUFFERED, "grad")
    found = {
        kind: diagnose(captured(tmp_path, BUFFERED, kind), reference, output=tmp_path / kind)
        for kind in ("buffered", "last", "dropped")
    }
    assert found["buffered"].exit_code == 0
    assert found["last"].verdict is not None
    assert found["last"].verdict.headline.code is Stages.LAST_ONLY
    assert found["dropped"].verdict is not None
    assert found["dropped"].verdict.headline.code is Stages.CLEARED_BEFORE_UPDATE


def test_a_step_without_an_optimizer_ends_where_gradients_are_cleared(tmp_path: Path) -> None:
    run = open_trace(captured(tmp_path, UPDATED))
    assert sorted(run.steps()) == [0, 1]


@pytest.mark.parametrize("how", ["data", "in place"])
@pytest.mark.parametrize("num", [1, 3])
def test_a_step_without_an_optimizer_ends_where_weights_are_written(
    how: str, num: int, tmp_path: Path
) -> None:
    """Gradients that are taken away after each microbatch and added up end none."""
    run = open_trace(captured(tmp_path, BY_HAND, how, str(num)))
    assert sorted(run.steps()) == [0, 1]
    assert [max(step_view(run, step, 0).microbatch) for step in (0, 1)] == [num - 1] * 2


def said_of_steps(run: Path) -> bool:
    return UNSEEN_UPDATE in open_trace(run).rank_facts(0)["limits"]


def test_a_program_that_marks_its_steps_is_asked_for_nothing(tmp_path: Path) -> None:
    """Under ``trueup capture`` too a step ends where the program's Tracer says so, from the first on."""
    runs = {how: captured(tmp_path, FLAT, how, "marked") for how in ("each", "later", "backwards")}
    run = open_trace(runs["each"])
    assert [max(step_view(run, step, 0).microbatch) for step in sorted(run.steps())] == [1, 1]
    assert not any(map(said_of_steps, runs.values()))
    compared = {how: compare(runs[how], runs["each"]).exit_code for how in ("later", "backwards")}
    assert compared == {"later": 0, "backwards": 1}


def test_a_step_that_may_be_a_microbatch_is_said_to_be_cut(tmp_path: Path) -> None:
    """Weights written through ``data`` tell nothing of an update that is still to come."""
    assert said_of_steps(captured(tmp_path, FLAT, "each", "unmarked"))
    by_hand = [(BY_HAND, "data", "1"), (BY_HAND, "in place", "3")]
    for program, *words in [(UPDATED,), *by_hand, (BUFFERED, "dropped"), (HELD_IN_PART,)]:
        assert not said_of_steps(captured(tmp_path, program, *words))


def said_of_the_optimizer(folder: Path, target: str, reference: str) -> list[Reason]:
    found = diagnose(folder / target, folder / reference, output=folder / f"{target} {reference}")
    return [one.headline for one in found.findings if one.stage is Stage.OPTIMIZER]


@pytest.mark.parametrize(("target", "reference"), [("weights", "copies"), ("copies", "weights")])
def test_which_of_the_two_is_updated(target: str, reference: str, runs: Path) -> None:
    (said,) = said_of_the_optimizer(runs, target, reference)
    dtypes = {"weights": "bfloat16", "copies": "float32"}
    assert (said.code, said.place("key")) == (Stages.SETTING, "updated_dtype")
    assert (said.place("target"), said.place("reference")) == (dtypes[target], dtypes[reference])


def test_copies_that_are_rounded_back_are_named(runs: Path) -> None:
    (said,) = said_of_the_optimizer(runs, "copied back", "copies")
    assert said.code is WeightsCode.RESTARTED
    for both in ("copied back", "copies"):
        assert said_of_the_optimizer(runs, both, both) == []
    swapped = said_of_the_optimizer(runs, "copies", "copied back")
    assert WeightsCode.RESTARTED not in [one.code for one in swapped]


@pytest.mark.parametrize(("target", "num"), [("loaded later", 3), ("last loaded later", 1)])
def test_copies_made_before_weights_are_loaded(target: str, num: int, runs: Path) -> None:
    """Forward and backward are equal: the model has the loaded weights, its copies the old ones."""
    found = diagnose(runs / target, runs / "loaded", output=runs / f"started {target}")
    (said,) = [one for one in found.findings if one.stage is Stage.OPTIMIZER]
    assert said.headline.code is WeightsCode.NOT_FROM_THE_MODEL
    assert said.counter_evidence[0].code is WeightsCode.REFERENCE_FROM_THE_MODEL
    assert said.next_note == reason(WeightsCode.RELOAD_MASTERS)
    (start,) = [one for one in said.evidence if one.code is WeightsCode.OTHER_START]
    assert (start.number("num"), start.number("total")) == (
        num,
        3,
    )  # the last bias has too few elements to tell
    assert [one.code for one in said.causes] == [CauseCode.MASTERS_NOT_RELOADED]
    for both in ("loaded", target):
        assert said_of_the_optimizer(runs, both, both) == []


@pytest.mark.parametrize(("target", "reference"), [("kept late", "kept"), ("kept", "kept late")])
def test_copies_made_of_rounded_weights(target: str, reference: str, runs: Path) -> None:
    """The model computes with the same numbers; what rounding took from them one run's copies still hold."""
    found = diagnose(runs / target, runs / reference, output=runs / f"from {target}")
    (said,) = [one for one in found.findings if one.stage is Stage.OPTIMIZER]
    side = "target" if target == "kept late" else "reference"
    assert said.headline == reason(WeightsCode.ROUNDED_START, side=side, dtype="bfloat16")
    assert WeightsCode.HOLDS_NO_MORE in [one.code for one in said.evidence]
    assert [one.code for one in said.causes] == [CauseCode.MASTERS_OF_ROUNDED]
    assert said_of_the_optimizer(runs, target, target) == []


def test_state_of_copies_that_is_rounded_between_two_steps(runs: Path) -> None:
    """A copy begins a step as the step before left it, though nobody recorded it there."""
    found = diagnose(runs / "coarse state", runs / "copies", output=runs / "rounded").findings
    assert found[0].headline.code is Stages.STATE_ROUNDED


@pytest.mark.parametrize(("target", "reference"), [("resting", "copies"), ("copies", "resting")])
def test_copies_that_a_rate_of_0_leaves_coarse_are_no_coarse_copies(
    target: str, reference: str, runs: Path
) -> None:
    """As in a warm-up's first step: what is made of a coarse weight has its values until it is moved."""
    (said,) = said_of_the_optimizer(runs, target, reference)
    assert (said.code, said.place("key")) == (Stages.SETTING, "lr")
    assert said_of_the_optimizer(runs, "weights", target)[0].place("key") == "updated_dtype"


@pytest.mark.parametrize(
    ("target", "reference", "code"),
    [
        ("weights", "copies", VerdictCode.UPDATES_COPIES),
        ("copies", "weights", VerdictCode.UPDATES_COPIES),
        ("copies", "copies", VerdictCode.BIT_IDENTICAL),
    ],
)
def test_compare_says_so_too(target: str, reference: str, code: VerdictCode, runs: Path) -> None:
    verdict = compare(runs / target, runs / reference).verdict
    assert verdict.headline.code is code
    if code is VerdictCode.UPDATES_COPIES:
        assert verdict.headline.place("side") == ("target" if target == "copies" else "reference")
        assert verdict.evidence[0].number("num") == 4


def test_other_tensors_that_an_optimizer_updates_are_no_copies(runs: Path) -> None:
    found = compare(runs / "something else", runs / "weights").verdict
    assert found.headline.code is not VerdictCode.UPDATES_COPIES


def test_what_an_optimizer_holds_besides_are_no_copies(runs: Path) -> None:
    said = said_of_the_optimizer(runs, "something else", "weights")
    assert [one.code for one in said] == [Stages.MOVED]


def _stepped(dtype: str | None, weight: str | None = None) -> Update:
    return Update(fqn="w", moved=True, dtype=weight, after_dtype=dtype, state_dtypes={}, count=None)


def test_a_dtype_that_no_trace_has_is_no_other_dtype() -> None:
    """A weight's copy on one side, on the other a weight whose values were not recorded."""
    copy = _stepped("float32")
    assert _held_gap((None, _stepped(None, "float16")), (copy, None)) == {}
    assert set(_held_gap((None, _stepped("float16")), (copy, None))) == {"updated_dtype"}
