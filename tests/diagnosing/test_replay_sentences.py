"""What is said of records of a replay, checked from the two programs, or from the numbers alone."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.diagnosing.made_steps import drawn, run
from tests.diagnosing.made_steps import step as made_step
from tests.diagnosing.replaying import replay as replayed
from trueup.diagnosing.replay.absent import absent_gradients
from trueup.diagnosing.replay.charge import replayed_steps
from trueup.diagnosing.replay.judge import Difference
from trueup.diagnosing.replay.step import ReplayedStep
from trueup.diagnosing.replay.words import evidence_of
from trueup.diagnosing.runs import AuxiliaryRuns, Clock
from trueup.store.view import WEIGHT
from trueup.types.codes import ReplayCode
from trueup.types.codes import StagesCode as Stages
from trueup.types.reason import reason
from trueup.wording import text

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class One(nn.Linear):
    """A layer that may multiply with what is cut off from its input."""

    way = ""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach() if self.way == "in the call" else x)


class Inner(nn.Module):
    """Two layers."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.one, self.two = One(8, 8), nn.Linear(8, 8)
        self.one.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))


class Net(nn.Module):
    """A residual beside a module that is cut off, in one of three places, or not at all."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.first, self.inner, self.last = way, nn.Linear(8, 8), Inner(way), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        made = self.inner(h.detach() if self.way == "before the call" else h)
        return self.last(h + (made.detach() if self.way == "after the call" else made))


WAYS_AND_NONE = ("none", "in the call", "before the call", "after the call")


def model_of(way: str) -> Net:
    torch.manual_seed(0)
    return Net(way)


def train(way: str) -> None:
    model = model_of(way)
    model(torch.randn(4, 8, generator=torch.Generator().manual_seed(1))).square().mean().backward()


def in_graph(way: str) -> dict[tuple[str, str], bool]:
    """Whether what each module is given and gives takes part in the graph."""
    model, found = model_of(way), {}

    def note(module: nn.Module, given_: Any, made: Any, *, name: str) -> None:
        found[name, "input.0"], found[name, "output.0"] = given_[0].requires_grad, made.requires_grad

    for name, module in model.named_modules():
        module.register_forward_hook(partial(note, name=name))
    model(torch.randn(4, 8))
    return found


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], ReplayedStep]:
    """Way of the target and of the reference -> the step."""
    found = {}
    for pair in PAIRS:
        folder = tmp_path_factory.mktemp("replay")
        replayed(folder, partial(train, pair[1]), partial(train, pair[0]))
        found[pair] = replayed_steps(folder / "replay", folder / "reference")[0]
    return found


PAIRS = [("in the call", "none"), ("none", "before the call"), ("after the call", "none"), ("none", "none")]
"""ways of the target and of the reference, either of which may be cut off"""
CODES = {
    "in the call": ReplayCode.NO_GRADIENT_FROM_CALL,
    "before the call": ReplayCode.NOT_IN_GRAPH,
    "after the call": ReplayCode.NO_GRADIENT_FROM_USES,
}


@pytest.mark.parametrize("ways", PAIRS)
def test_gradients_of_one_run(steps: dict[tuple[str, str], ReplayedStep], ways: tuple[str, str]) -> None:
    step, way = steps[ways], max(ways, key=WAYS_AND_NONE.index)
    side = "target" if ways[0] == way else "reference"
    found = absent_gradients(step)
    if way == "none":
        assert not found
        return
    lacking, having = in_graph(way), in_graph("none")
    for one in found:
        assert one.lacking == side
        if step.target.kind[one.call] != "module":
            continue
        place = step.target.name[one.call], one.slot
        assert having[place]
        assert (one.why.code is ReplayCode.NOT_IN_GRAPH) is not lacking[place], place
        if lacking[place]:
            given_ = one.slot.startswith("input")
            assert (one.why.code is ReplayCode.NO_GRADIENT_FROM_CALL) is given_, place
    charged = [one for one in found if one.charged]
    assert {one.why.code for one in charged} == {CODES[way]}
    assert {one.owner for one in charged} == {"inner.one" if way == "in the call" else ""}
    for said in evidence_of((step, one) for one in charged):
        assert said.code is ReplayCode.MISSING_GRADIENT
        assert (said.facts["side"], said.parts) == (side, (reason(CODES[way]),))


# -- numbers of one record ------------------------------------------


@pytest.fixture(scope="module")
def step(steps: dict[tuple[str, str], ReplayedStep]) -> ReplayedStep:
    return steps["none", "none"]


def difference(step: ReplayedStep, **given_: Any) -> Difference:
    view = step.target
    record = next(
        r for r, phase in enumerate(view.phase) if phase == "forward" and view.slot[r] == "output.0"
    )
    plain: dict[str, Any] = {
        "record": record,
        "call": view.record_call[record],
        "phase": "forward",
        "slot": "output.0",
        "left_free": None,
        "rel_l2": 0.5,
        "tolerance": 1e-6,
        "score": 2.0,
        "scale": None,
        "bias_z": None,
        "biased": False,
        "reference_record": 0,
        "measured": False,
    }
    return Difference(**{**plain, **given_})


SIZES = st.floats(1e-9, 1e3) | st.sampled_from([math.inf])
ALLOWED = st.floats(1e-9, 1.0) | st.sampled_from([0.0, None])
SCALES = st.tuples(st.sampled_from([1, -1]), st.floats(-7, 0)).map(lambda one: 1 + one[0] * 10 ** one[1])


@settings(max_examples=40, derandomize=True, deadline=None)
@given(SIZES, ALLOWED, st.none() | SCALES, st.floats(6, 1e6) | st.just(math.inf), st.integers(0, 3))
def test_what_is_said_of_a_difference(
    step: ReplayedStep,
    size: float,
    allowed: float | None,
    scale: float | None,
    bias: float,
    peers: int,
) -> None:
    z = None if scale is None else math.copysign(bias, scale - 1)
    one = difference(
        step, rel_l2=size, tolerance=allowed, scale=scale, bias_z=z, biased=scale is not None, peers=peers
    )
    (said,) = evidence_of([(step, one)])
    words = text(said)
    if math.isinf(size):
        assert said.code is ReplayCode.NOT_FINITE
        assert not said.parts
        return
    # floating numbers are rounded, whether or not a bound is known of them
    assert said.code is ReplayCode.DIFFERS
    assert said.number("rel_l2") == size
    assert ("times" in words) is (allowed is not None and size > allowed), words
    parts = {part.code: part for part in said.parts}
    assert (ReplayCode.BIASED in parts) is (scale is not None)
    assert (ReplayCode.PEERS_AGREE in parts) is (peers > 0)
    if scale is not None:
        shown = text(parts[ReplayCode.BIASED]).partition("scale ")[2].partition(",")[0]
        assert float(shown) == pytest.approx(scale, rel=1e-5)
        assert (float(shown) > 1) is (scale > 1), shown
        assert (float(shown) < 1) is (scale < 1), shown


def test_integers_differ_though_nothing_rounds_them(tmp_path: Path) -> None:
    """Twins: indices, which are exact, and numbers of no known bound."""

    class Largest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.pick = nn.Linear(8, 8), Pick()

        def forward(self, x: Tensor) -> Tensor:
            h = self.weight(x)
            return h.gather(-1, self.pick(h))

    class Pick(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.topk(2, -1).indices

    def train_it() -> None:
        torch.manual_seed(0)
        Largest()(torch.randn(4, 8)).mean().backward()

    replayed(tmp_path, train_it, train_it)
    (step,) = replayed_steps(tmp_path / "replay", tmp_path / "reference")
    codes = {}
    for record, (phase, slot) in enumerate(zip(step.target.phase, step.target.slot, strict=True)):
        if phase == "forward" and slot.startswith("output"):
            call = step.target.record_call[record]
            one = difference(step, record=record, call=call, slot=slot, tolerance=None)
            codes[step.target.name[call]] = evidence_of([(step, one)])[0].code
    assert codes["pick"] is ReplayCode.EXACT_VALUES_DIFFER
    assert codes["weight"] is ReplayCode.DIFFERS


# -- runs on the way ------------------------------------------


def test_gradients_that_cannot_be_given(tmp_path: Path) -> None:
    """A reference that keeps no values of gradients: said with what is wrong, and no program is run."""
    trace = run(tmp_path / "t", made_step({"w": {WEIGHT: drawn(1)}}))
    work = AuxiliaryRuns(
        target=trace.path,
        reference=trace.path,
        sources=(trace, trace),
        output=tmp_path / "out",
        clock=Clock(),
        say=lambda words: None,
    )
    assert work.given(["no such program"]) is None
    (note,) = work.notes
    assert note.code is Stages.GRADIENTS_FAILED
    assert "gradient" in str(note.facts["error"])
    assert str(note.facts["error"]) in text(note)
