"""Replay in MindSpore: a run on its own values differs nowhere, and a fault stays where it is made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from mindspore import Parameter, Tensor, mint, nn, value_and_grad

from tests.adapters.mindspore.loops import LOOPS
from tests.adapters.mindspore.models import GPT, batch, cross_entropy, start
from tests.diagnosing.replaying import replay, sites, states
from trueup.store import Trace

pytestmark = pytest.mark.mindspore

Change = Callable[[GPT], None]


def one_step(change: Change | None = None) -> None:
    """A training step of the model, changed or not."""
    start()
    model = GPT()
    if change is not None:
        change(model)
    optimizer = nn.AdamWeightDecay(model.trainable_params(), 1e-2)

    def forward(ids: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(model(ids), labels)

    _, found = value_and_grad(forward, None, optimizer.parameters)(*batch(0))
    optimizer(found)


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize(
    "loop", ["classic_optimizer", "accumulated", "tied", "with_dropout", "loss_scaled", "recomputed"]
)
def test_a_run_on_its_own_values_differs_nowhere(loop: str, level: str, tmp_path: Path) -> None:
    made, _, _ = replay(tmp_path, LOOPS[loop], LOOPS[loop], level=level)
    found = states(made)
    assert found.get("equal", 0) > 50, found
    assert "replaced" not in found, sites(made).filter(state="replaced")


class Scaled(nn.Cell):
    """What a cell gives, times a number."""

    def __init__(self, cell: nn.Cell, factor: float) -> None:
        super().__init__(auto_prefix=False)
        self.weight: Parameter = cell.weight
        self.factor = factor

    def construct(self, x: Tensor) -> Tensor:
        return mint.nn.functional.linear(x, self.weight) * self.factor


class Doubling(nn.Cell):
    """Gives its input, and sends twice its gradient back."""

    def construct(self, x: Tensor) -> Tensor:
        return x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (dout * 2,)


def _output_scaled(model: GPT) -> None:
    model.layers[0].down = Scaled(model.layers[0].down, 1.01)


def _gradient_doubled(model: GPT) -> None:
    norm, doubling = model.layers[1].norm1, Doubling()
    plain = type(norm).construct
    norm.construct = lambda x: plain(norm, doubling(x))


def _charged(made: Trace) -> set[tuple[str, str, str]]:
    """Where more than rounding was made; sums over other uses are added up in another order."""
    beyond = pl.col("difference") > 1e-5 * pl.col("norm")
    rows = sites(made).filter(beyond, state="replaced").select("name", "phase", "slot")
    return {(str(name), str(phase), str(slot)) for name, phase, slot in rows.iter_rows()}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_output_scaled, ("layers.0.down", "forward", "output.0")),
        (_gradient_doubled, ("layers.1.norm1", "backward", "input.0")),
    ],
)
def test_a_fault_stays_where_it_is_made(
    change: Change, expected: tuple[str, str, str], tmp_path: Path
) -> None:
    made, _, _ = replay(tmp_path, one_step, partial(one_step, change))
    found = _charged(made)
    assert expected in found
    names = {name for name, phase, _ in found if phase in ("forward", "backward")}
    assert names == {expected[0]}, found
