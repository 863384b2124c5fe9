"""Steps, microbatches and sites of the loops people write."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import trueup
from tests.adapters.torch.reading import Captured, capture, total
from tests.models.gpt import GPT, GPTConfig, batch, loss_of
from trueup.comparing.run import compare
from trueup.diagnosing.pipeline import diagnose
from trueup.store import Trace
from trueup.types.finding import KindCode, Stage

pytestmark = pytest.mark.torch

TINY = GPTConfig(vocab_size=32, num_layers=2, hidden_size=16, num_heads=2, seq_length=8)


def scalars(path: Path) -> list[dict[str, Any]]:
    return Trace(path).scalars(0)


def test_tied_parameters_have_one_call_and_two_names(tmp_path: Path) -> None:
    model = GPT(TINY)
    model.head.weight = model.emb.weight
    ids, labels = batch(TINY, step=0)
    run = capture(tmp_path / "run", lambda: loss_of(model, ids, labels).backward(), level="L0")
    names = [c["name"] for c in run.calls if c["kind"] == "parameter"]
    assert names.count("emb.weight") == 1
    assert "head.weight" not in names
    table = {p["fqn"]: p for p in run.facts["parameters"]}
    assert table["head.weight"]["tied_to"] == "emb.weight"
    assert table["emb.weight"]["tied_to"] is None
    assert run.one("emb.weight", "param_grad", "local")


class _Named(nn.Module):
    """Two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, *, x: Tensor, scale: Tensor) -> Tensor:
        return (self.linear(x) * scale).sum()


class _InPieces(nn.Module):
    """A trunk and a head that the program calls one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def loss(self, x: Tensor, factor: float) -> Tensor:
        hidden = self.trunk(x) * factor
        return torch.stack([self.head(piece).square().sum() for piece in hidden.split(1)]).sum()


def test_hidden_states_that_a_head_is_given_are_no_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, y = _InPieces(), torch.randn(3, 4), torch.randn(3, 4)
    lines = []
    for number, (rows, factor) in enumerate(((x, 1.0), (x, 1.0 + 1e-6), (y, 1.0))):
        run = capture(
            tmp_path / str(number),
            lambda rows=rows, factor=factor: model.loss(rows, factor).backward(),
            level="L0",
        )
        lines.append(run.trace.scalars(0)[0])
    assert lines[0]["batch_digest"] == lines[1]["batch_digest"] != lines[2]["batch_digest"]
    assert [line["batch_size"] for line in lines] == [3, 3, 3]


def test_inputs_that_no_root_computed_are_a_batch(tmp_path: Path) -> None:
    """An embedding called as a function: the model's only inputs have a history."""
    torch.manual_seed(0)
    table, model = nn.Parameter(torch.randn(5, 4)), nn.Linear(4, 2)
    ids = torch.tensor([[1, 2, 3], [0, 4, 1]])
    run = capture(
        tmp_path / "run",
        lambda: model(nn.functional.embedding(ids, table)).square().sum().backward(),
        level="L0",
    )
    assert run.trace.scalars(0)[0]["batch_size"] == 2


def test_a_batch_is_the_same_in_any_order_of_its_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, y = _Named(), torch.randn(2, 4), torch.randn(2, 4)
    given: list[dict[str, Tensor]] = [
        {"x": x, "scale": y},
        {"scale": y, "x": x},
        {"x": y, "scale": x},
    ]
    digests = []
    for number, one in enumerate(given):
        run = capture(tmp_path / str(number), lambda one=one: model(**one).backward(), level="L0")
        digests.append(run.trace.scalars(0)[0]["batch_digest"])
    assert digests[0] == digests[1] != digests[2]


def test_two_optimizers_share_a_step(tmp_path: Path) -> None:
    model = GPT(TINY)
    rest = [p for n, p in model.named_parameters() if not n.startswith("emb")]
    optimizers = [torch.optim.SGD(model.emb.parameters(), 0.5), torch.optim.AdamW(rest, 1e-3)]

    def program() -> None:
        for step in range(3):
            loss_of(model, *batch(TINY, step=step)).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    run = capture(tmp_path / "run", program, level="L0", step=1)
    assert list(run.trace.steps()) == [0, 1, 2]
    assert run.slots("emb.weight", "optimizer") == ["param"]
    assert set(run.slots("head.weight", "optimizer")) == {
        "param",
        "state.step",
        "state.exp_avg",
        "state.exp_avg_sq",
    }
    assert [o["class"] for o in run.facts["optimizers"]] == ["SGD", "AdamW"]
    groups = {p["fqn"]: p["optimizer_group"] for p in run.facts["parameters"]}
    assert groups["emb.weight"] == [0, 0]
    assert groups["head.weight"] == [1, 0]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_backward_called_as_a_function_is_one_backward(level: str, tmp_path: Path) -> None:
    model = GPT(TINY)
    loss = loss_of(model, *batch(TINY, step=0))

    def program() -> None:
        for _ in range(2):
            torch.autograd.backward(loss_of(model, *batch(TINY, step=0)))

    run = capture(tmp_path / "run", program, level=level)
    assert [call["microbatch"] for call in run.calls if call["kind"] == "loss"] == [0, 1]
    assert scalars(tmp_path / "run")[0]["losses"] == pytest.approx([loss.item()] * 2)


def test_two_models_that_train_in_turn(tmp_path: Path) -> None:
    class Generator(nn.Linear):
        pass

    class Critic(nn.Linear):
        pass

    generator, critic = Generator(3, 4), Critic(4, 1)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (generator, critic)]

    def program() -> None:
        for _ in range(2):
            noise = torch.randn(5, 3)
            optimizers[1].zero_grad()
            (critic(torch.randn(5, 4)) - critic(generator(noise).detach())).mean().backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            critic(generator(noise)).mean().backward()
            optimizers[0].step()

    first = capture(tmp_path / "run", program, level="L0")
    assert list(first.trace.steps()) == [0, 1, 2, 3]
    assert Counter(c["name"] for c in first.calls if c["kind"] == "module") == {"": 2, "Generator": 1}
    second = Captured(tmp_path / "run", 1)
    assert Counter(c["name"] for c in second.calls if c["kind"] == "module") == {"": 1, "Generator": 1}
    assert second.slots("Generator.weight", "optimizer") == ["param"]
    assert second.slots("weight", "optimizer") == []
    assert [r["name"] for r in first.facts["roots"]] == ["", "Generator"]


def test_a_scaler_that_skips_a_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000, backoff_factor=2.0**-100)
    losses: list[float] = []

    def program() -> None:
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.ones(2, 8)).float().square().mean() * 100
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())

    capture(tmp_path / "run", program, level="L0")
    lines = scalars(tmp_path / "run")
    assert [line["skipped"] for line in lines] == [True, False, False]
    assert [line["loss_scale"] for line in lines] == [2.0**127, 2.0**27, 2.0**27]
    assert [line["loss"] for line in lines] == losses
    first, second = (Captured(tmp_path / "run", step) for step in (0, 1))
    assert first.slots("weight", "optimizer") == []
    assert second.slots("weight", "optimizer") == ["param"]
    clipped = [second.value(n, "param_grad", "clipped").flatten() for n in ("weight", "bias")]
    assert lines[1]["local_norm"] == pytest.approx(torch.cat(clipped).norm().item(), rel=1e-4)


def test_a_turn_whose_update_the_scaler_skips_is_a_step(tmp_path: Path) -> None:
    """Of two models that take turns, and one scaler that is updated after both."""
    torch.manual_seed(0)
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    turns = [
        (net, torch.optim.SGD(net.parameters(), 0.1), factor)
        for net, factor in ((first, 100.0), (second, 1e-20))
    ]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000, backoff_factor=2.0**-100)

    def program() -> None:
        for _ in range(2):
            for net, optimizer, factor in turns:
                optimizer.zero_grad()
                scaler.scale(net(torch.ones(2, 8)).square().mean() * factor).backward()
                scaler.step(optimizer)
            scaler.update()

    capture(tmp_path / "run", program, level="L0")
    lines = scalars(tmp_path / "run")
    assert [line["microbatches"] for line in lines] == [1, 1, 1, 1]
    assert [line.get("skipped") for line in lines] == [True, False, False, False]


def _lbfgs(steps: int, calls: list[int]) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    x, y = torch.randn(16, 4), torch.randn(16, 1)
    for _ in range(steps):
        calls.append(0)

        def closure() -> Tensor:
            calls[-1] += 1
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_closure_evaluated_many_times_is_one_step(level: str, tmp_path: Path) -> None:
    calls: list[int] = []
    weights: list[Tensor] = []
    before = _lbfgs(3, [])
    run = capture(tmp_path / "run", lambda: weights.extend(_lbfgs(3, calls)), level=level)
    alone = [[w.tolist() for w in one] for one in (before, _lbfgs(3, []))]  # two that once differed in 1e-7
    assert [w.tolist() for w in weights] in alone
    assert list(run.trace.steps()) == [0, 1, 2]
    assert [line["microbatches"] for line in scalars(tmp_path / "run")] == calls
    assert min(calls) > 1
    assert all(line["learning_rate"] == [0.5] for line in scalars(tmp_path / "run"))
    assert run.slots("weight", "optimizer")[0] == "param"


def test_adam_with_a_closure(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        return loss

    capture(tmp_path / "run", lambda: [optimizer.step(closure) for _ in range(3)], level="L0")
    assert [line["microbatches"] for line in scalars(tmp_path / "run")] == [1, 1, 1]


def _clipped_in_a_closure(
    make: Callable[[Any], torch.optim.Optimizer], clip: float, *, closed: bool, how: str = "place"
) -> None:
    """Three steps, each with its backward and clipping inside ``step(closure)``, as Lightning does, or
    before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = make(model.parameters())
    x, y = torch.randn(16, 4), 5 * torch.randn(16, 1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        return loss

    for _ in range(3):
        if closed:
            optimizer.step(closure) if how == "place" else optimizer.step(closure=closure)
        else:
            closure()
            optimizer.step()


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]] = {
    "of a formula": lambda one: torch.optim.lr_scheduler.LambdaLR(one, lambda at: 1 / (at + 1)),
    "that restarts": lambda one: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(one, 2),
    "of a cycle": lambda one: torch.optim.lr_scheduler.OneCycleLR(one, 0.1, 8),
}


@pytest.mark.parametrize("is_known", [True, False], ids=["made during capture", "made before"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_where_a_scheduler_stands_at_each_update(name: str, is_known: bool, tmp_path: Path) -> None:
    """Stepped once a step, and again between the second step's microbatches; rates are as without capture."""

    def train(made: torch.optim.lr_scheduler.LRScheduler | None = None) -> list[float]:
        scheduler, rates = made or prepared(), []
        for at in range(3):
            for microbatch in range(2):
                layer(x).square().sum().backward()
                if at == 1 and not microbatch:
                    scheduler.step()
            rates.append(scheduler.optimizer.param_groups[0]["lr"])
            scheduler.optimizer.step()
            scheduler.optimizer.zero_grad()
            scheduler.step()
        return rates

    def prepared() -> torch.optim.lr_scheduler.LRScheduler:
        return SCHEDULERS[name](torch.optim.SGD(layer.parameters(), 0.1))

    layer, x = nn.Linear(4, 2), torch.ones(3, 4)
    plain, made = train(), None if is_known else prepared()
    with trueup.Tracer(tmp_path / "run", level="L0", steps="0-2"):
        rates = train(made)
    lines = scalars(tmp_path / "run")
    assert rates == plain == [line["learning_rate"][0] for line in lines]
    known: list[list[int] | None] = [[0], [2], [3]]
    if not is_known:  # from its first step, unless its class has a ``step`` of its own
        known = [None, None, None] if name == "that restarts" else [None, [2], [3]]
    assert [line.get("scheduler_steps") for line in lines] == known


_MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=False),
}


@pytest.mark.parametrize("make", _MAKERS.values(), ids=_MAKERS)
@pytest.mark.parametrize("how", ["place", "keyword"])
def test_a_step_with_a_closure_is_recorded_as_one_without(
    make: Callable[[Any], torch.optim.Optimizer], how: str, tmp_path: Path
) -> None:
    for closed in (False, True):
        folder = tmp_path / str(closed)
        capture(folder, lambda c=closed: _clipped_in_a_closure(make, 0.5, closed=c, how=how), level="mix")
    comparison = compare(tmp_path / "True", tmp_path / "False")
    rows = [row for table in comparison.tables for row in table.to_pylist()]
    assert {row["status"] for row in rows} == {"equal"}
    kept = {row["slot"] for row in rows if row["phase"] == "param_grad" and row["kind"] == "parameter"}
    assert kept == {"local", "accumulated", "clipped"}


@pytest.mark.parametrize("closed", [False, True], ids=["before", "in a closure"])
def test_another_clip_value_is_charged_to_clipping(closed: bool, tmp_path: Path) -> None:
    for clip in (0.5, 0.7):
        capture(
            tmp_path / str(clip),
            lambda c=clip: _clipped_in_a_closure(_MAKERS["adamw"], c, closed=closed),
            level="mix",
        )
    runs = tmp_path / "0.7", tmp_path / "0.5"
    verdict = compare(*runs).verdict
    assert (verdict.phase, verdict.headline.place("what")) == ("param_grad", "Tensor.__rtruediv__")
    first = diagnose(*runs, output=tmp_path / "out").findings[0]
    assert (first.stage, first.kinds[0].name) == (Stage.REDUCTION, KindCode.WRONG_OPTIMIZER_SETTING)


def test_an_optimizer_torch_does_not_know(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)

    def program() -> None:
        for step in range(4):
            for _ in range(1 + step % 2):
                model(torch.ones(3, 4)).square().mean().backward()
            for p in model.parameters():
                assert p.grad is not None
                p.data -= 0.1 * p.grad
                p.grad = None

    capture(tmp_path / "run", program, level="L0", steps="2", step=2)
    assert [line["microbatches"] for line in scalars(tmp_path / "run")] == [1, 2, 1, 2]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_evaluation_is_kept_apart(level: str, tmp_path: Path) -> None:
    model = GPT(TINY)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def program() -> None:
        for step in range(2):
            loss_of(model, *batch(TINY, step=step)).backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                for i in range(20):
                    loss_of(model, *batch(TINY, step=50 + i))
            model.train()

    run = capture(tmp_path / "run", program, level=level, step=0)
    roots = [c for c in run.calls if c["kind"] == "module" and c["parent"] is None]
    assert [c["mode"] for c in roots] == ["train"] + ["eval"] * 8
    assert [c["ordinal"] for c in roots] == [0, *range(8)]
    children = Counter(c["mode"] for c in run.calls if c["name"] == "layers.0.attn.qkv")
    assert children == {"train": 1, "eval": 8}
    assert [line["microbatches"] for line in scalars(tmp_path / "run")] == [1, 1]
    assert list(run.trace.steps()) == [0, 1]


@pytest.mark.parametrize("before", [(), ("teacher",), ("student", "teacher")])
def test_models_of_one_class_are_numbered_as_they_are_first_evaluated(
    before: tuple[str, ...], tmp_path: Path
) -> None:
    """Before the steps that are captured, or in one: a name is the same model's in both programs."""

    class Net(nn.Sequential):
        pass

    models = {name: Net(nn.Linear(4, 4), nn.Linear(4, 1)) for name in ("student", "teacher", "average")}

    def step(*evaluated: str) -> None:
        models["student"](torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            for name in evaluated:
                models[name](torch.full((2, 4), 3.0 if name == "teacher" else 5.0))

    def program() -> None:
        step(*before)
        for parameter in models["student"].parameters():
            parameter.grad = None
        step(*(("average", "teacher") if before else ("teacher", "average")))

    run = capture(tmp_path / "run", program, step=1, level="L0", steps="1")
    given = [run.value(name, "forward", "input.0")[0, 0].item() for name in ("Net", "Net#1")]
    assert given == [3.0, 5.0]


def test_evaluation_left_out(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def program() -> None:
        model(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            model(torch.ones(2, 4))

    run = capture(tmp_path / "run", program, evaluation=False)
    assert {c["mode"] for c in run.calls if c["kind"] == "module"} == {"train"}


def test_only_the_models_asked_for(tmp_path: Path) -> None:
    class Teacher(nn.Sequential):
        pass

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.student(x)

    outer, teacher = Outer(), Teacher(nn.Linear(4, 1))
    tracer = trueup.Tracer(tmp_path / "run", level="mix", steps="all")
    tracer.start(outer.student)
    (outer(torch.ones(2, 4)) - teacher(torch.ones(2, 4))).sum().backward()
    tracer.close()
    run = Captured(tmp_path / "run")
    assert [c["name"] for c in run.calls if c["kind"] == "module"] == ["", "0", "1"]


# -- exceptions ---------------------------------------


class Fragile(nn.Module):
    """Fails where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)
        self.fail: str | None = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.fail == "forward":
            raise ValueError("told to")
        if self.fail == "backward":

            def hook(_: Tensor) -> None:
                raise ValueError("told to")

            hidden.register_hook(hook)
        return self.second(hidden)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_exception_in_the_middle_of_a_step(where: str, tmp_path: Path) -> None:
    def train(failing: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = Fragile()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            x = torch.full((2, 4), float(step))
            if failing and step == 1:
                model.fail = where
                with pytest.raises(ValueError, match="told to"):
                    model(x).sum().backward()
                model.fail = None
                optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()]

    expected = train(failing=True)
    actual: list[Tensor] = []
    capture(tmp_path / "failing", lambda: actual.extend(train(failing=True)))
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))
    capture(tmp_path / "whole", lambda: train(failing=False))
    for step in (0, 2):
        runs = [Captured(tmp_path / name, step).digests() for name in ("failing", "whole")]
        assert runs[0] == runs[1] != []
    half = Captured(tmp_path / "failing", 1)
    assert [line["microbatches"] for line in scalars(tmp_path / "failing")] == [1, 2, 1]
    assert half.one("", "forward", "input.0", microbatch=1)
    assert len(half.find("", "forward", "output.0")) == (1 if where == "forward" else 2)
    limits = [s for s in half.facts["limits"] if "exception" in s]
    assert len(limits) == (1 if where == "forward" else 0)


@pytest.mark.usefixtures("cold")
def test_a_program_that_dies(tmp_path: Path) -> None:
    program = f"""
import torch, trueup
from torch import nn
trueup.Tracer({str(tmp_path / "run")!r}, level="mix", steps="all").start()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    loss = model(torch.ones(2, 4)).sum()
    if step == 2:
        raise RuntimeError("out of luck")
    loss.backward(); optimizer.step(); optimizer.zero_grad()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "out of luck" in done.stderr
    assert "trueup" not in done.stderr.replace("trueup.Tracer", "")
    trace = Trace(tmp_path / "run")
    assert list(trace.steps()) == [0, 1, 2]
    assert any("RuntimeError in step 2" in limit for limit in trace.rank_facts(0)["limits"])


# -- processes ---------------------------------------


class Numbers(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return (torch.arange(4.0) * index).softmax(-1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_are_silent(method: str, tmp_path: Path, capfd: Any) -> None:
    model = nn.Linear(4, 1)
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=4, num_workers=2, multiprocessing_context=method, persistent_workers=False
    )

    def program() -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            for x in loader:
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    run = capture(tmp_path / "run", program)
    assert run.trace.steps() == {0: [0], 1: [0], 2: [0], 3: [0]}
    assert "trueup" not in capfd.readouterr().err
    assert sorted(p.name for p in (tmp_path / "run" / "ranks").glob("*.json")) == ["rank_00000.json"]
    assert not list((tmp_path / "run").glob("**/*.writing-*"))
    for step in range(4):
        Captured(tmp_path / "run", step).value("", "forward", "input.0")


CHILD = """
import multiprocessing, os, sys, torch, trueup
from torch import nn

def train(steps):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

def main(output, parent_trains):
    torch.set_num_threads(1)
    trueup.Tracer(output, level="mix", task="tensor", steps="all").start()
    if parent_trains:
        train(1)
    child = multiprocessing.get_context("fork").Process(target=train, args=(3,))
    child.start()
    child.join()
    assert child.exitcode == 0
    if parent_trains:
        train(1)

main(sys.argv[1], sys.argv[2] == "parent")
"""


@pytest.mark.parametrize("who", ["parent", "child"])
def test_a_child_made_by_fork(who: str, tmp_path: Path) -> None:
    """It captures what it trains if its parent has not trained; else it keeps out of its parent's run."""
    command = [sys.executable, "-c", CHILD, str(tmp_path / "run"), who]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(Trace(tmp_path / "run").steps()) == ([0, 1] if who == "parent" else [0, 1, 2])


# -- activation checkpointing ---------------------------------------


def _checkpointed(use_reentrant: bool | None, seen: list[Tensor] | None = None) -> None:
    torch.manual_seed(0)
    model = GPT(TINY)
    if use_reentrant is not None:
        for block in model.layers:
            inner = block.forward
            block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=use_reentrant)
    for step in range(2):
        loss_of(model, *batch(TINY, step=step)).backward()
    if seen is not None:
        seen += [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_recomputed_calls_are_marked_and_all_else_is_as_without(
    use_reentrant: bool, level: str, tmp_path: Path
) -> None:
    plain = capture(tmp_path / "plain", lambda: _checkpointed(None), level=level)
    again = capture(tmp_path / "again", lambda: _checkpointed(use_reentrant), level=level)
    modules = {c["name"] for c in again.calls if c["mode"] == "recompute" and c["kind"] == "module"}
    assert {"layers.0.attn.qkv", "layers.1.mlp.up"} <= modules
    assert not {"", "emb", "head"} & modules
    assert not [c for c in plain.calls if c["mode"] == "recompute"]

    def kept(run: Captured, phases: tuple[str, ...]) -> dict[Any, Any]:
        records = [r for r in run.records if r["site"]["mode"] != "recompute"]
        return {
            site: digest
            for (site, digest, _), r in zip(run.digests(), records, strict=True)
            if r["phase"] in phases and r["site"]["kind"] in ("module", "parameter", "loss")
        }

    for phases in (("param", "forward", "loss"), ("backward", "param_grad")):
        assert kept(again, phases) == kept(plain, phases) != {}


def test_a_module_called_twice_in_one_checkpointed_region(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.once = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(lambda y: self.once(self.shared(self.shared(y))), x, use_reentrant=True)

    x = torch.randn(2, 4, requires_grad=True)
    run = capture(tmp_path / "run", lambda: total(Twice()(x)).backward(), level="L0")
    assert [r["site"]["mode"] for r in run.find("once", "backward", "output.0")] == ["train"]
    assert [r["site"]["mode"] for r in run.find("shared", "backward", "output.0")] == ["recompute"] * 2
    assert [c["ordinal"] for c in run.calls if c["name"] == "shared"] == [0, 1, 0, 1]


class _Engine(nn.Module):
    """As DeepSpeed's: its gradients are gone after each backward, and it counts its microbatches."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.inner, self.steps, self.micro_steps = nn.Linear(4, 4), steps, 0

    def gradient_accumulation_steps(self) -> int:
        return self.steps

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).square().mean()


@pytest.mark.parametrize(("steps", "microbatches"), [(2, [2, 2]), (1, [1, 1, 1, 1])])
def test_an_engine_that_moves_gradients_away_says_where_a_step_ends(
    steps: int, microbatches: list[int], tmp_path: Path
) -> None:
    model = _Engine(steps)
    flat = nn.Parameter(torch.zeros(20))
    optimizer = torch.optim.SGD([flat], lr=0.1)

    def train() -> None:
        for _ in range(4):
            model(torch.ones(2, 4)).backward()
            for parameter in model.parameters():
                parameter.grad = None
            model.micro_steps += 1
            if steps == 2 and model.micro_steps % 2 == 0:  # with 1, gradients are thrown away
                flat.grad = torch.ones(20)
                optimizer.step()

    capture(tmp_path / "run", train, level="L0")
    assert [line["microbatches"] for line in scalars(tmp_path / "run")] == microbatches


def _scaled(*, fused: bool, by_scaler: bool = True) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 3), torch.randn(5, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        if by_scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()


def test_a_fused_optimizer_takes_the_loss_scale_out_itself(tmp_path: Path) -> None:
    """Its gradients keep the scale; what it makes of them is the same update."""
    runs = {
        "plain": lambda: _scaled(fused=False),
        "fused": lambda: _scaled(fused=True),
        "still scaled": lambda: _scaled(fused=True, by_scaler=False),
    }
    for name, program in runs.items():
        capture(tmp_path / name, program, level="L0")
    ends = {one: compare(tmp_path / one, tmp_path / "plain").exit_code for one in runs}
    assert ends == {"plain": 0, "fused": 0, "still scaled": 1}
