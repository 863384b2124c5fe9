"""Weights that differ where each process holds others, as the stages of a pipeline do."""

from __future__ import annotations

from pathlib import Path

import pytest

from trueup.diagnosing.pipeline import diagnose
from trueup.types.codes import WeightsCode
from trueup.types.finding import Stage

pytestmark = [pytest.mark.torch, pytest.mark.distributed, pytest.mark.xdist_group("worlds")]


def captured(seed: int, folder: str) -> None:
    """In every process: a step of a model whose modules are named by the process."""
    from collections import OrderedDict

    import torch
    import torch.distributed as dist

    import trueup

    rank = dist.get_rank()
    torch.manual_seed(seed)
    blocks = [(f"block{2 * rank + at}", torch.nn.Linear(8, 8)) for at in range(2)]
    model = torch.nn.Sequential(OrderedDict(blocks))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", steps="0"):
        model(torch.full((2, 8), 1.0)).square().mean().backward()
        optimizer.step()


def test_every_process_counts_its_own_weights(tmp_path: Path) -> None:
    from tests.trainer.worlds import world

    for name, seed in (("target", 1), ("reference", 0)):
        world(2).run("tests.diagnosing.test_weights_of_ranks:captured", seed, str(tmp_path / name))
    found = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    first = found.findings[0]
    assert (first.stage, found.outcome.exit_code) == (Stage.WEIGHTS, 1)
    counted = next(one for one in first.evidence if one.code is WeightsCode.NUM_DIFFERENT)
    assert counted.number("num") == counted.number("total") == 8


def cut(whole: tuple[bool, int], folder: str) -> None:
    """In every process: a step of a model; each holds its last layer whole, or its own rows from one on."""
    import torch
    import torch.distributed as dist

    import trueup

    rank, (is_whole, first) = dist.get_rank(), whole
    torch.manual_seed(3)
    full, last = torch.randn(9, 8), torch.nn.Linear(8, 8 if is_whole else 4, bias=False)
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)), last)
    last.weight.data.copy_(full[:8] if is_whole else full[4 * rank + first :][:4])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", task="tensor", steps="0"):
        model(torch.full((2, 8), 1.0)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("target", "reference", "way"),
    [
        ((True, 0), (False, 0), "whole_in_target"),
        ((False, 0), (True, 0), "whole_in_reference"),
        ((True, 0), (False, 1), "shape"),
    ],
)
def test_a_weight_that_only_one_run_cuts_is_whole_on_each(
    target: tuple[bool, int], reference: tuple[bool, int], way: str, tmp_path: Path
) -> None:
    from tests.trainer.worlds import world

    for name, whole in (("target", target), ("reference", reference)):
        world(2).run("tests.diagnosing.test_weights_of_ranks:cut", whole, str(tmp_path / name))
    found = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    first = found.findings[0]
    assert (first.stage, first.headline.place("way")) == (Stage.WEIGHTS, way)
    assert first.kinds[0].name == "constant_argument"  # not the reference's values in another order


def gathered(is_whole: bool, folder: str) -> None:
    """In every process: a layer whose weight is whole, or cut over them and put together for its use."""
    import torch
    import torch.distributed as dist
    from torch.distributed.nn import functional as shared

    import trueup

    class Linear(torch.nn.Module):
        def __init__(self, full: torch.Tensor) -> None:
            super().__init__()
            own = full if is_whole else full[4 * dist.get_rank() :][:4]
            self.weight = torch.nn.Parameter(own.clone())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight if is_whole else torch.cat(shared.all_gather(self.weight))
            return x @ weight.T

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), Linear(torch.randn(8, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level="L0", task="tensor", steps="0"):
        model(torch.full((2, 8), 1.0 + dist.get_rank())).square().mean().backward()
        optimizer.step()


def test_a_weight_that_is_put_together_for_its_use_is_the_same(tmp_path: Path) -> None:
    from tests.trainer.worlds import world

    for name, is_whole in (("target", True), ("reference", False)):
        world(2).run("tests.diagnosing.test_weights_of_ranks:gathered", is_whole, str(tmp_path / name))
    found = diagnose(tmp_path / "target", tmp_path / "reference", output=tmp_path / "out")
    assert all(one.stage is not Stage.WEIGHTS for one in found.findings)
