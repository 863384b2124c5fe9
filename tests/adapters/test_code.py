"""The program's functions that a step can reach."""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from trueup.adapters.code import ReachableCode

FACTOR = 2.0


def plain(x: float) -> float:
    return x * FACTOR


def outer(x: float) -> float:
    return plain(x) + 1


def scaled_by(factor: float) -> Callable[[float], float]:
    def scaled(x: float) -> float:
        return x * factor

    return scaled


class Model:
    """Stands for a module: it has a forward, and is called by others."""

    scale = 3.0

    def __init__(self) -> None:
        self.act = abs

    def forward(self, x: float) -> float:
        return self.helped(x) * self.scale + self.act(x)

    def helped(self, x: float) -> float:
        return outer(x)


class Trainer:
    def step(self) -> list[FrameType]:
        return self.loss()

    def loss(self) -> list[FrameType]:
        found = []
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
        return found


class Special(Trainer):
    def loss(self) -> list[FrameType]:
        return super().loss()


def collected(*modules: tuple[str, object], frames: list[FrameType] | None = None) -> dict[str, Any]:
    code = ReachableCode(())
    for frame in frames or []:
        code.frame(frame.f_code, frame.f_globals)
    return code.collect(modules)


def named(found: dict[str, Any], name: str) -> list[Any]:
    return next(one for one in found["functions"] if one[0].endswith(name))


def test_what_a_forward_calls_is_followed() -> None:
    found = collected(("layers.0", Model()))
    assert found["roots"]["type"] == {"layers.0": "Model"}
    assert found["functions"][found["roots"]["class"]["Model"]][0] == "Model.forward"
    assert named(found, "Model.forward")[5] == {"scale": 3.0}
    assert named(found, "Model.forward")[6]["act"] == "builtins.abs"
    assert named(found, "plain")[5] == {"FACTOR": 2.0}
    assert "x * FACTOR" in named(found, "plain")[3]


def test_a_forward_of_one_module_s_own() -> None:
    special, usual = Model(), Model()
    special.forward = functools.partial(scaled_by(0.5), x=1.0)  # type: ignore[method-assign]
    found = collected(("a", usual), ("b", special))
    own = found["functions"][found["roots"]["module"]["b"]]
    assert own[0].endswith("scaled")
    assert own[5] == {"factor": 0.5, "x": 1.0}
    assert "a" not in found["roots"]["module"]


def test_objects_above_a_call_are_asked_what_they_carry() -> None:
    trainer = Special()
    trainer.helper = scaled_by(7.0)  # type: ignore[attr-defined]
    frames = [frame for frame in trainer.step() if "test_code" in frame.f_code.co_filename]
    found = collected(frames=frames)
    assert {"Trainer.loss", "Special.loss", "Trainer.step"} <= set(found["roots"]["frame"])
    step = named(found, "Trainer.step")
    assert found["functions"][step[6]["loss"]][0] == "Special.loss"  # what its objects really call


def test_the_same_function_closed_over_something_else_is_another() -> None:
    one, two = Model(), Model()
    one.forward, two.forward = scaled_by(1.0), scaled_by(2.0)  # type: ignore[method-assign, assignment]
    found = collected(("one", one), ("two", two))
    values = [found["functions"][found["roots"]["module"][name]][5] for name in ("one", "two")]
    assert values == [{"factor": 1.0}, {"factor": 2.0}]


def test_nothing_is_held() -> None:
    class Heavy(Model):
        pass

    heavy = Heavy()
    code = ReachableCode(())
    code.collect([("", heavy)])
    before = len([one for one in gc.get_objects() if type(one) is Heavy])
    del heavy
    gc.collect()
    assert before == 1
    assert not [one for one in gc.get_objects() if type(one) is Heavy]


def test_the_dictionary_of_locals_stays_as_the_program_has_it() -> None:
    kept = locals()
    trainer = Special()
    collected(frames=trainer.step())
    assert "trainer" not in kept  # reading a frame's local variables would have put it there


class Counter:
    steps = 0

    def forward(self, x: float) -> float:
        self.steps += 1
        self.FACTOR = x
        return self.steps * x


def test_attributes_and_what_it_sets_are_no_globals_and_no_values() -> None:
    found = collected(("", Counter()))
    assert named(found, "Counter.forward")[5] == {}


LIMITS = [1, 2]


class Outcome:
    """Keeps what a run came to in lists; bounds and betas are what it is made with."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.counts = [0, 0]
        self.seen: set[int] = set()
        self.betas = [0.9, 0.95]
        self.bounds: list[int] = []
        self.bounds.extend(LIMITS)

    def forward(self, x: float) -> float:
        self.losses.append(x * self.betas[0])
        self.counts[0] = len(self.losses)
        for one in self.bounds:
            self.seen.add(one)
        return x * self.betas[1]


def test_lists_that_a_run_fills_are_no_values_and_those_it_reads_are() -> None:
    outcome = Outcome()
    outcome.forward(1.0)
    found = collected(("", outcome), frames=[])
    values = named(found, "Outcome.forward")[5]
    assert values == {"betas": "[0.9, 0.95]", "bounds": "[1, 2]"}


def test_properties_do_not_run() -> None:
    ran = []

    class Lazy(Model):
        @property
        def helped(self) -> float:  # type: ignore[override]
            ran.append(1)
            return FACTOR

    found = collected(("", Lazy()))
    assert not ran
    assert found["functions"][named(found, "Model.forward")[6]["helped"]][0].endswith("Lazy.helped")


class Pretender:
    """Says that it is a word, as lazy objects and mocks with a spec do."""

    __class__ = str  # type: ignore[assignment]

    def __str__(self) -> str:
        raise AssertionError("the program's object was asked")


PRETENDER: Any = Pretender()


OF_PROCESS, OF_PROGRAM = os.getpid(), -os.getpid()


def tagged(x: float) -> object:
    return plain(x), PRETENDER, OF_PROCESS, OF_PROGRAM


def test_a_stand_in_for_a_word_and_the_number_of_the_process_are_no_values() -> None:
    model = Model()
    model.forward = tagged  # type: ignore[method-assign, assignment]
    found = collected(("a", model))
    assert isinstance(PRETENDER, str)
    assert named(found, "tagged")[5] == {"OF_PROGRAM": OF_PROGRAM}
    assert "plain" in named(found, "tagged")[6]
    json.dumps(found)


@functools.lru_cache
def kept(x: float) -> float:
    return x + 1


class Compiled:
    """Stands for a library's object that is made of a function, as a kernel of triton is: called by index."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.fn, self.cache = function, {}

    def __getitem__(self, grid: object) -> Callable[..., object]:
        return self.fn


Compiled.__module__ = "json"  # a library's


def kernel(x: float) -> float:
    return plain(x)


started = Compiled(Compiled(kernel))  # tuned, then compiled


class Launching:
    def forward(self, x: float) -> object:
        return started[8](kept(x))


def test_functions_that_a_library_made_objects_of_are_followed() -> None:
    found = collected(("launching", Launching()))
    assert set(named(found, "Launching.forward")[6]) == {"started", "kept"}
    assert "return plain(x)" in named(found, "kernel")[3]
    assert "x + 1" in named(found, "kept")[3]
    assert named(found, "plain")[5] == {"FACTOR": 2.0}


def test_an_operator_registered_with_torch_is_followed_with_its_backward() -> None:
    torch = pytest.importorskip("torch")

    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    operator = torch.library.custom_op("trueup_tests::twice", twice, mutates_args=())
    operator.register_autograd(lambda ctx, gradient: gradient * 2)

    class Doubling:
        def forward(self, x: float) -> object:
            return operator(x)

    calls = named(collected(("doubling", Doubling())), "Doubling.forward")[6]
    assert len(calls) == 2, calls
