"""A gradient that no hook sees, since its tensor is written to after it was made, is not a missing one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.diagnosing.replaying import replay
from trueup.diagnosing.replay.charge import origins
from trueup.types.codes import ReplayCode
from trueup.types.finding import Origin

Join = Callable[["Block", Tensor], Tensor]


class Block(nn.Module):
    """A projection beside what it is added to."""

    def __init__(self, join: Join) -> None:
        super().__init__()
        self.proj, self.norm, self.join = nn.Linear(8, 8), nn.LayerNorm(8), join
        self.beside: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Of three dimensions: ``linear`` with a bias returns a view of them."""
        return self.norm(self.join(self, torch.tanh(x)))


def _added(block: Block, x: Tensor) -> Tensor:
    return block.proj(x) + x


def _in_place(block: Block, x: Tensor) -> Tensor:
    return block.proj(x).add_(x)


def _cut(block: Block, x: Tensor) -> Tensor:
    return block.proj(x).detach() + x


def _with_a_loss_beside(block: Block, x: Tensor) -> Tensor:
    y = block.proj(x)
    block.beside = y.square().mean()
    return y + x


def _cut_with_a_loss_beside(block: Block, x: Tensor) -> Tensor:
    """Something is sent back, though not what is in the reference."""
    y = block.proj(x)
    block.beside = y.square().mean()
    return y.detach() + x


def _loop(join: Join) -> Callable[[], None]:
    def train() -> None:
        torch.manual_seed(5)
        first, last = nn.Linear(8, 8), Block(join)
        model = nn.Sequential(first, last)
        x = torch.randn(3, 4, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        (model(x).square() * x).mean().add(last.beside).backward()
        optimizer.step()

    return train


def _missing(found: list[Origin]) -> list[str]:
    return [one.module for one in found if any(r.code is ReplayCode.MISSING_GRADIENT for r in one.evidence)]


def test_what_is_written_to_in_place_still_gets_its_gradient(tmp_path: Path) -> None:
    replay(tmp_path, _loop(_added), _loop(_in_place))
    assert origins(tmp_path / "replay", tmp_path / "reference") == []


def test_what_is_cut_off_does_not(tmp_path: Path) -> None:
    replay(tmp_path, _loop(_added), _loop(_cut))
    assert _missing(origins(tmp_path / "replay", tmp_path / "reference")) == ["1"]


def test_what_another_path_sends_back_is_not_the_output_s(tmp_path: Path) -> None:
    replay(tmp_path, _loop(_with_a_loss_beside), _loop(_cut_with_a_loss_beside))
    assert [one.module for one in origins(tmp_path / "replay", tmp_path / "reference")] == ["1"]
