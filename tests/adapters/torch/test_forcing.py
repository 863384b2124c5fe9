"""A run replayed with its own values is that run: not one site differs, whatever the model does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn

from tests.adapters.torch import loops
from tests.adapters.torch.loops import LOOPS, Result
from tests.adapters.torch.odd import odd
from tests.adapters.torch.reading import Captured
from tests.adapters.torch.test_bit_identity import assert_same_bits
from tests.diagnosing.replaying import capture, replay, sites, states
from trueup.diagnosing.replay import origins
from trueup.types.codes import LeftFree
from trueup.types.finding import Stage

pytestmark = pytest.mark.torch

ALL = {**LOOPS, "odd": odd}


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("loop", sorted(ALL))
def test_replaying_a_run_on_itself(loop: str, level: str, tmp_path: Path) -> None:
    expected: Result = ALL[loop]()
    found: list[Result] = []
    made, _, plan = replay(tmp_path, ALL[loop], lambda: found.append(ALL[loop]()), level=level, steps="0-1")
    assert list(made.steps()) == [0, 1]
    for step in (0, 1):
        assert set(states(made, step)) == {"equal"}, sites(made, step).filter(state="replaced")
        phases = set(made.forced(step, 0)["phase"])
        assert phases == {"forward", "backward", "param", "param_grad", "loss"}
        planned = next(p for p in plan.steps if p.step == step)
        assert made.forced(step, 0).height >= planned.num_forced
    assert_same_bits(found[-1], expected)


def test_without_digests_the_bits_are_looked_at(tmp_path: Path) -> None:
    """As on devices, whose digests come when the step ends."""
    capture(tmp_path / "reference", LOOPS["autocast"], task="tensor", digest=False)
    made, _, _ = replay(tmp_path, LOOPS["autocast"], LOOPS["autocast"])
    assert set(states(made)) == {"equal"}


# -- an input used several times ------------------------------------------


class Uses(nn.Module):
    """Its input goes three ways; ``factor`` is what the first way's gradient is wrongly multiplied with."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return WrongBack.apply(x, self.factor) + x * x.exp()


class WrongBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * 2 * ctx.factor, None


@pytest.mark.parametrize("factor", [1.01, 1e6, math.nan, 0.0])
def test_only_the_call_that_errs_differs_however_large_its_error(factor: float, tmp_path: Path) -> None:
    def train(factor: float) -> Callable[[], None]:
        def run() -> None:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), Uses(factor), nn.Linear(8, 1))
            optimizer = torch.optim.SGD(model.parameters(), 0.0)
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()

        return run

    made, reference, _ = replay(tmp_path, train(1.0), train(factor))
    assert [o.module for o in origins(made.path, reference.path)] == ["2"]
    wrong = sites(made).filter(phase="backward", state="replaced", name="2")
    assert wrong["slot"].to_list() == ["input.0"]
    others = sites(made).filter(pl.col("name") != "2", pl.col("state") != "equal")
    assert all(e < 1e-6 for e in (others["difference"] / others["norm"]).to_list())


class Divided(nn.Module):
    """Its loss is divided by the number it is given, outside and again inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 1)
        self.again = Half()

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        found: Tensor = self.inner(x).square().sum() / count
        return found + self.again(found, count)


class Half(nn.Module):
    """A module below that is given the number too."""

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        return x / count


@pytest.mark.parametrize(("number", "expected"), [(34, "replaced"), (33, "replaced"), (33.5, "equal")])
def test_a_count_that_is_no_whole_number_is_not_cut_to_one(
    number: float, expected: str, tmp_path: Path
) -> None:
    """33.5 put into whole numbers is 33: equal to the program's 33, and another loss where that had 34."""

    def train(number: float) -> Callable[[], None]:
        def run() -> None:
            torch.manual_seed(0)
            model = Divided()
            optimizer = torch.optim.SGD(model.parameters(), 0.0)
            model(torch.randn(16, 8), torch.tensor(number)).backward()
            optimizer.step()

        return run

    made, _, _ = replay(tmp_path, train(33.5), train(number))
    given = sites(made).filter(phase="forward", slot="input.1", name="")
    assert given["state"].to_list() == [expected]
    others = sites(made).filter((pl.col("slot") != "input.1") | (pl.col("name") != ""))
    assert set(others["state"]) == {"equal"}, others.filter(pl.col("state") != "equal")


def test_a_whole_number_is_the_same_in_another_dtype(tmp_path: Path) -> None:
    """34 and 34.0 are one number: nothing is handed over."""

    def train(number: float) -> Callable[[], None]:
        def run() -> None:
            torch.manual_seed(0)
            model = Divided()
            model(torch.randn(16, 8), torch.tensor(number)).backward()
            torch.optim.SGD(model.parameters(), 0.0).step()

        return run

    made, _, _ = replay(tmp_path, train(34.0), train(34))
    assert set(states(made)) == {"equal"}


class Labelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(8, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.words(ids)), labels)


def test_a_tensor_given_twice_is_replaced_only_where_the_reference_has_another(tmp_path: Path) -> None:
    """A program that trains on all tokens gives one tensor as ids and as labels."""

    def train(ignored: int) -> Callable[[], None]:
        def run() -> None:
            torch.manual_seed(0)
            model = Labelled()
            ids = torch.arange(8)
            labels = torch.where(ids < ignored, -100, ids) if ignored else ids
            model(ids, labels).backward()
            torch.optim.SGD(model.parameters(), 0.0).step()

        return run

    made, _, _ = replay(tmp_path, train(3), train(0))
    wrong = sites(made).filter(pl.col("state") != "equal", pl.col("phase") == "forward")
    assert wrong["slot"].to_list() == ["input.1"]
    assert wrong["state"].to_list() == ["replaced"]


def test_values_that_differed_stay_with_the_replay(tmp_path: Path) -> None:
    """What kinds of faults are told by: the program's own tensor, before it was overwritten."""
    made, reference, _ = replay(tmp_path, LOOPS["plain"], lambda: with_a_scale(1.5))
    row = sites(made).filter(phase="forward", slot="output.0", name="layers.1.ln2").row(0, named=True)
    assert row["state"] == "replaced"
    mine, theirs = Captured(made.path), Captured(reference.path)
    actual = mine.values(mine.records[row["record"]])
    expected = theirs.values(theirs.records[row["reference_record"]])
    torch.testing.assert_close(actual, expected * 1.5)
    assert row["scale"] == pytest.approx(1.5)
    equal = sites(made).filter(state="equal").row(0, named=True)
    assert mine.records[equal["record"]]["summary"]["tensor"] is None


LARGEST = {
    "amax": lambda x: x.amax(-1, keepdim=True),
    "a view of it": lambda x: x.amax(-1)[..., None],
    "a norm": lambda x: torch.linalg.vector_norm(x, math.inf, dim=-1, keepdim=True),
    "of all": lambda x: x.max(),
    "with its place": lambda x: x.max(-1, keepdim=True).values,
}


class Largest(nn.Module):
    """A module that gives the largest element, and one that is given it."""

    def __init__(self, how: str, factor: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.how, self.factor, self.identity = LARGEST[how], factor, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.factor != 1.0:  # the graph of the reference has no factor
            x = x * self.factor
        return self.last(x - self.identity(self.how(x)))


@pytest.mark.parametrize("how", LARGEST)
def test_a_largest_element_is_not_replaced_where_backward_looks_for_it(how: str, tmp_path: Path) -> None:
    """Backward would find no element that equals it, and divide by none; a twin keeps the place."""

    def train(factor: float) -> Callable[[], None]:
        def run() -> None:
            torch.manual_seed(0)
            model = Largest(how, factor)
            model(torch.randn(3, 8)).square().sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()

        return run

    made, reference, _ = replay(tmp_path, train(1.0), train(1.01))
    rows = sites(made).filter(name="identity", phase="forward")
    left = set(rows["reason"].drop_nulls())
    assert left == (set() if how == "with its place" else {LeftFree.LOOKED_FOR.value})
    grads = made.read(0, 0)
    values = grads.records.filter(phase="param_grad")["summary"]
    assert not any(grads.summaries["num_nan"][int(row)] for row in values)
    found = origins(made.path, reference.path)
    assert {one.module for one in found if one.stage is Stage.FORWARD} == {""}


def with_a_scale(factor: float) -> None:
    """The plain loop, one norm's output too large."""

    class Scaled(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * factor

    def change(model: nn.Module) -> None:
        model.layers[1].ln2.__class__ = Scaled  # type: ignore[index,union-attr]

    made = loops.GPT

    class Changed(made):  # type: ignore[misc,valid-type]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            change(self)

    loops.GPT = Changed  # type: ignore[misc]
    try:
        LOOPS["plain"]()
    finally:
        loops.GPT = made  # type: ignore[misc]


class Placed(nn.Module):
    """Token vectors and those of positions, with a norm of its own that sees the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(12, 8), nn.Embedding(6, 8)
        self.out = nn.Linear(8, 12)

    def forward(self, ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(ids.shape[1])[None]
        found: Tensor = self.out(self.tokens(ids) + self.places(position_ids))
        return found


def test_positions_of_one_row_where_the_reference_gives_each_sample_its_own(tmp_path: Path) -> None:
    """The target counts padding; with the reference's positions the whole model is the reference's."""

    def train(position_ids: Tensor | None) -> Callable[[], None]:
        def run() -> None:
            torch.manual_seed(0)
            model = Placed()
            optimizer = torch.optim.SGD(model.parameters(), 0.0)
            model(torch.arange(12).view(2, 6), position_ids=position_ids).square().mean().backward()
            optimizer.step()

        return run

    own = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 2, 3]])
    made, _, _ = replay(tmp_path, train(own), train(torch.arange(6)[None]))
    given = sites(made).filter(phase="forward", slot="input.position_ids", name="")
    assert given["state"].to_list() == ["replaced"]
    others = sites(made).filter((pl.col("slot") != "input.position_ids") | (pl.col("name") != ""))
    assert set(others["state"]) == {"equal"}, others.filter(pl.col("state") != "equal")
    lacking, _, _ = replay(tmp_path / "lacking", train(own), train(None))
    found = sites(lacking).filter(pl.col("phase") == "forward")
    assert "replaced" in found.filter(name="places", slot="input.0")["state"].to_list()
    assert set(found.filter(pl.col("name") == "out")["state"]) == {"equal"}
    fewer, _, _ = replay(tmp_path / "fewer", train(torch.arange(6)[None]), train(own))
    given = sites(fewer).filter(phase="forward", slot="input.position_ids", name="")
    assert given["state"].to_list() == ["free"]
