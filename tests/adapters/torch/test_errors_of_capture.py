"""No error of capture's own reaches the program: every function of ours that a captured run calls is made to
raise, once and always, and the program computes the same bits as without capture."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import trueup
from trueup.adapters.torch.stats import Summariser
from trueup.capture import session
from trueup.store import Trace

pytestmark = pytest.mark.torch

SOURCE = str(Path(trueup.__file__).parent) + os.sep
STEPS = 2


class InjectedError(Exception):
    """Stands for any error of ours."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        buffer = torch.empty(hidden.shape)
        buffer[:] = hidden.detach()
        hidden = hidden + checkpoint(self.inner, hidden, use_reentrant=False) + 0.1 * buffer
        logits: Tensor = self.last(hidden)
        return logits


def program() -> list[object]:
    """What a training program does, each way in from torch at least once; returns its numbers."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    numbers: list[object] = []
    for _ in range(STEPS):
        for _ in range(2):
            x, labels = torch.randn(5, 4), torch.randint(3, (5,))
            loss = nn.functional.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            numbers.append(loss.item())
        scaler.unscale_(optimizer)
        numbers.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        numbers.append(model.first.weight.data.numpy().sum().item())
        if dist.is_initialized():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.no_grad():
            numbers.append(model(torch.ones(1, 4)).sum().item())
        with suppress(RuntimeError):
            model(torch.ones(1, 5))
        for parameter in model.parameters():
            torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().clone()))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    numbers.append(optimizer.step(closure).item())
    return numbers + [parameter.tolist() for parameter in model.parameters()]


WAYS: dict[str, dict[str, Any]] = {
    "mix": {"level": "mix"},
    "values in a scope": {"task": "tensor", "level": "mix", "stacks": False, "scope": ("inner", "last")},
    "overflow": {"level": "mix", "task": "overflow_check"},
    "monitored": {"level": "L0", "monitor": True},
}

ENTRIES = {
    "adapters/engine.py:BaseEngine.forward_failed",
    "adapters/engine.py:BaseEngine.left_scope",
    "adapters/gradients.py:Arrival.__call__",
    "adapters/gradients.py:ApiNode.__call__",
    "adapters/gradients.py:Sums.add",
    "adapters/gradients.py:Use.__call__",
    "adapters/gradients.py:_Records._record",
    "adapters/torch/api.py:ApiMode.__torch_function__",
    "adapters/torch/api.py:_captured",
    "adapters/torch/api.py:_name_or_none",
    "adapters/torch/collectives.py:_BackwardCollectives.__torch_dispatch__",
    "adapters/torch/collectives.py:_forget",
    "adapters/torch/collectives.py:_is_seen",
    "adapters/torch/collectives.py:_record",
    "adapters/torch/collectives.py:_wrap.<locals>.collective",
    "adapters/torch/collectives.py:_wrote",
    "adapters/torch/escapes.py:_escaped",
    "adapters/torch/escapes.py:_get_data",
    "adapters/torch/escapes.py:_watched.<locals>.escaping",
    "adapters/measuring.py:never_raises.<locals>.safe",
    "adapters/torch/modules.py:_captured",
    "adapters/torch/modules.py:_kind_of",
    "adapters/torch/modules.py:_top_level",
    "adapters/torch/modules.py:_wrapped_call",
    "adapters/torch/training.py:Training._arrived",
    "adapters/torch/training.py:_after_step",
    "adapters/torch/training.py:_before_step",
    "adapters/torch/training.py:_watched_closure.<locals>.evaluate",
    "adapters/torch/training.py:_is_of_the_run",
    "adapters/torch/training.py:_of_the_run",
    "adapters/torch/training.py:_wrap_backward.<locals>.backward",
    "adapters/torch/training.py:_wrap_clipping.<locals>.clip_grad_norm_",
    "adapters/torch/training.py:_wrap_scaler.<locals>.scaling",
    "adapters/torch/training.py:_wrap_scaler.<locals>.stepping",
    "adapters/torch/training.py:_wrap_scaler.<locals>.updating",
    "adapters/torch/training.py:_wrap_swap.<locals>.swap_tensors",
    "capture/shield.py:shielded.<locals>.safe",
    "capture/tracer.py:Tracer.__enter__",
    "capture/tracer.py:Tracer.__exit__",
}
"""Where the program or torch comes into our code. They do nothing unguarded but read attributes, so that an
error in any function that they call stays with us; one at their own beginning could not."""

NOT_HERE = {
    "adapters/torch/collectives.py:_BackwardCollectives.__torch_dispatch__",  # DDP reduces in backward
    "adapters/torch/api.py:_name_or_none",  # names are known from the first run on
}

EXCEPTIONS = ("Tracer.__init__", "monitoring/settings.py", "Monitor.", "__del__")
"""where a person's mistake is reported before anything runs, and what Python itself keeps from the program"""


def captured(folder: Path, way: str) -> list[object]:
    options = {"steps": f"0-{STEPS}", "overwrite": True, **WAYS[way]}
    monitor = trueup.Monitor() if options.pop("monitor", False) else None
    with trueup.Tracer(folder, monitor=monitor, **options):
        return program()


def name_of(code: CodeType) -> str:
    return f"{Path(code.co_filename).relative_to(SOURCE).as_posix()}:{code.co_qualname}"


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(SOURCE)


def is_entry(code: CodeType) -> bool:
    return is_ours(code) and name_of(code) in ENTRIES


@contextmanager
def profiled(seen: Callable[[FrameType], None]) -> Iterator[None]:
    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen(frame)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


Called = dict[CodeType, set[str]]
"""functions of ours, and what called them"""


def outermost_functions(folder: Path, way: str) -> Called:
    """Code of our functions that are called by the program, by torch, or by one of the ways in; an error in
    any other comes to one of these."""
    called: Called = {}

    def seen(frame: FrameType) -> None:
        caller = frame.f_back
        if is_ours(frame.f_code) and (
            caller is None or not is_ours(caller.f_code) or is_entry(caller.f_code)
        ):
            called.setdefault(frame.f_code, set()).add("" if caller is None else caller.f_code.co_qualname)

    with profiled(seen):
        captured(folder, way)
    return {
        code: callers
        for code, callers in called.items()
        if not any(word in name_of(code) for word in EXCEPTIONS)
    }


def called_here_alone(folder: Path, way: str) -> Called:
    """Those that the ways before this one do not reach from the same caller, whose guard is the same."""
    called = outermost_functions(folder, way)
    for before in list(WAYS)[: list(WAYS).index(way)]:
        known = outermost_functions(folder, before)
        called = {code: callers for code, callers in called.items() if callers - known.get(code, set())}
    return called


@contextmanager
def raising(code: CodeType, *, always: bool) -> Iterator[list[str]]:
    """Every call of this function raises, or the first; Python takes away a trace function that raises."""
    raised: list[str] = []

    def trace(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is code and (always or not raised):
            raised.append(name_of(code))
            raise InjectedError(name_of(code))

    def again(_: FrameType) -> None:
        if sys.gettrace() is None:
            sys.settrace(trace)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with profiled(again) if always else nullcontext():
            yield raised
    finally:
        sys.settrace(before)


def escaped(code: CodeType, folder: Path, way: str, expected: list[object], *, always: bool) -> bool:
    """Whether an error in this function reaches the program or changes what it computes."""
    try:
        with raising(code, always=always):
            return captured(folder, way) != expected
    except InjectedError:
        return True
    finally:
        if (left := session.current()) is not None:
            left.close()


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(("way", "always"), [*((way, False) for way in WAYS), ("mix", True)])
def test_no_error_reaches_the_program(way: str, always: bool, tmp_path: Path) -> None:
    expected = program()
    assert captured(tmp_path / "run", way) == expected
    gc.collect()
    gc.freeze()  # each capture looks through all objects: not through what the first has imported
    functions = called_here_alone(tmp_path / "run", way)
    guarded = [code for code in functions if name_of(code) not in ENTRIES]
    assert len(guarded) > 20 or way != next(iter(WAYS))
    reached = [
        name_of(code) for code in guarded if escaped(code, tmp_path / "run", way, expected, always=always)
    ]
    assert reached == []


@pytest.mark.usefixtures("process_group")
def test_the_error_is_injected_and_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The twin of the test above: it could pass because nothing raises."""
    code = Summariser.row.__code__
    with raising(code, always=True) as raised:
        captured(tmp_path / "run", "mix")
    assert len(raised) > 100
    facts = Trace(tmp_path / "run").rank_facts(0)
    assert facts["num_failures"] == len(raised)
    assert capsys.readouterr().err.count("InjectedError") <= 1


@pytest.mark.usefixtures("process_group")
def test_the_ways_in_are_the_ones_listed(tmp_path: Path) -> None:
    """An error at the very beginning of a way in reaches the program: the list is of those, and no others."""
    seen = {name_of(code) for way in WAYS for code in outermost_functions(tmp_path / way, way)}
    assert ENTRIES - seen <= NOT_HERE


EARLIER = """
import torch
from torch import nn
model = nn.Linear(4, 2)
for _ in range({calls}):
    with torch.no_grad():
        model(torch.ones(3, 4))
model(torch.ones(3, 4)).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
"""


@pytest.mark.parametrize("calls", [0, 2])
def test_calls_before_the_first_training_forward_are_counted(calls: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(EARLIER.format(calls=calls), encoding="utf-8")
    command = [sys.executable, "-m", "trueup", "capture", "-o", str(tmp_path / "run"), "--", sys.executable]
    subprocess.run([*command, str(program)], check=True, capture_output=True)
    limits = Trace(tmp_path / "run").rank_facts(0).get("limits") or []
    assert [limit for limit in limits if "before the first training forward" in limit] == (
        [f"{calls} calls of a model without gradients, before the first training forward, left no record"]
        if calls
        else []
    )
