"""A module that is called once for each word of a set, in the order of each process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.diagnosing.replaying import capture, replay, states
from trueup.comparing.run import compare
from trueup.diagnosing.replay import origins
from trueup.store import Trace
from trueup.store.places import places
from trueup.types.call_place import words_given

pytestmark = pytest.mark.torch

ONE, OTHER = ("full", "sliding"), ("sliding", "full")


class Angles(nn.Module):
    """What it makes depends on a word alone; ``theta`` is that of the sliding layers."""

    def __init__(self, theta: float) -> None:
        super().__init__()
        self.theta = {"full": 1e4, "sliding": theta}

    def forward(self, x: Tensor, word: str) -> Tensor:
        return (torch.arange(8) / self.theta[word]).cos() * torch.ones_like(x)


class Chained(nn.Module):
    """Each call is given what the one before made: their order is the computation."""

    def forward(self, x: Tensor, word: str) -> Tensor:
        return x.tanh() if word == "full" else x * 0.5


class Net(nn.Module):
    def __init__(self, order: tuple[str, ...], *, theta: float = 10.0, chained: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.order = nn.Linear(8, 8), nn.Linear(8, 1), order
        self.turn = Chained() if chained else Angles(theta)
        self.chained = chained

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.chained:
            for word in self.order:
                x = self.turn(x, word)
            return self.last(x)
        made = {word: self.turn(x, word) for word in self.order}
        return self.last(x * made["full"] + x.sin() * made["sliding"])


def training(order: tuple[str, ...], *, theta: float = 10.0, chained: bool = False) -> Callable[[], None]:
    def run() -> None:
        torch.manual_seed(0)
        model = Net(order, theta=theta, chained=chained)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()

    return run


def compared(folder: Path, reference: Callable[[], None], target: Callable[[], None]) -> int:
    for name, run in (("target", target), ("reference", reference)):
        capture(folder / name, run, task="tensor")
    return compare(folder / "target", folder / "reference").exit_code


def test_another_order_is_no_difference(tmp_path: Path) -> None:
    made, _, _ = replay(tmp_path, training(ONE), training(OTHER))
    assert set(states(made)) == {"equal"}
    assert compared(tmp_path / "free", training(ONE), training(OTHER)) == 0


def test_a_difference_in_another_order_is_that_of_its_word(tmp_path: Path) -> None:
    made, reference, _ = replay(tmp_path, training(ONE), training(OTHER, theta=20.0))
    assert [one.module for one in origins(made.path, reference.path)] == ["turn"]


def test_calls_that_are_given_what_others_make_keep_their_order(tmp_path: Path) -> None:
    assert compared(tmp_path, training(ONE, chained=True), training(OTHER, chained=True)) == 1


def test_places_are_numbered_among_calls_of_the_same_words(tmp_path: Path) -> None:
    _, reference, _ = replay(tmp_path, training(ONE), training(OTHER))
    found = [place.rpartition("/")[2] for place in places(Trace(reference.path).read(0, 0).calls)]
    assert [one for one in found if one.startswith("turn")] == ["turn(full)#0", "turn(sliding)#0"]


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        ("module", '{"input.2": "full_attention", "input.3": 4}', "full_attention"),
        ("module", '{"input.2": "runs/a 1"}', ""),
        ("module", '{"input.2": 4}', ""),
        ("api", '{"input.reduction": "mean"}', ""),
        ("module", None, ""),
    ],
)
def test_words_are_those_of_modules_alone(kind: str, arguments: str | None, words: str) -> None:
    assert words_given(kind, arguments) == words
