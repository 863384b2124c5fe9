"""Averaged weights of several processes: each one's own, and processes that write none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from trueup.comparing.averages import average_gaps
from trueup.comparing.run import compare
from trueup.diagnosing.pipeline import diagnose
from trueup.diagnosing.stages.context import Context
from trueup.diagnosing.stages.evaluated import _ranks_at_fault
from trueup.store import Trace
from trueup.types.codes import NoteCode, StagesCode, VerdictCode
from trueup.types.finding import Finding

pytestmark = [pytest.mark.torch, pytest.mark.distributed, pytest.mark.xdist_group("worlds")]


def captured(decays: dict[int, float], folder: str, level: str = "L0") -> None:
    """In every process: two steps of one model, and an average of its weights on the ranks of ``decays``,
    which is evaluated where functions are captured."""
    import copy

    import torch
    import torch.distributed as dist

    import trueup

    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueup.Tracer(folder, level=level, steps="0-1"):
        for _ in range(2):
            x, wanted = torch.randn(4, 8), torch.zeros(4, 4)
            made = model(x)
            if level != "L0":
                with torch.no_grad():
                    wanted = average(x)
            (made + 1 - wanted).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank in decays:
                with torch.no_grad():
                    for held, new in zip(average.parameters(), model.parameters(), strict=True):
                        held.lerp_(new, 1 - decays[rank])


def ran(
    folder: Path, target: dict[int, float], reference: dict[int, float], level: str = "L0"
) -> tuple[Path, Path]:
    from tests.trainer.worlds import world

    sides = folder / "target", folder / "reference"
    for path, decays in zip(sides, (target, reference), strict=True):
        world(2).run("tests.comparing.test_averages_of_ranks:captured", decays, str(path), level)
    return sides


def test_a_rank_that_writes_no_average_is_named(tmp_path: Path) -> None:
    sides = ran(tmp_path, {0: 0.9}, {0: 0.9, 1: 0.9})
    notes = {note.code: note for note in compare(*sides).content.notes}
    assert NoteCode.AVERAGES_AGREE not in notes
    assert notes[NoteCode.AVERAGES_OF_RANKS].place("side") == "target"
    assert notes[NoteCode.AVERAGES_OF_RANKS].place("ranks") == ("1",)
    context = cast(Context, SimpleNamespace(target=Trace(sides[0]), reference=Trace(sides[1])))
    for seen, code in (([1], StagesCode.AVERAGED_ON_RANKS), ([0, 1], None), ([0], None)):
        found = _ranks_at_fault([cast(Finding, SimpleNamespace(rank=rank)) for rank in seen], context)
        assert (found and found.code) is code


def test_ranks_that_write_none_in_both_runs_tell_nothing(tmp_path: Path) -> None:
    sides = ran(tmp_path, {0: 0.9}, {0: 0.9})
    codes = {note.code for note in compare(*sides).content.notes}
    assert NoteCode.AVERAGES_OF_RANKS not in codes
    assert NoteCode.AVERAGES_AGREE in codes


def test_an_average_of_another_rank_than_the_first_differs(tmp_path: Path) -> None:
    sides = ran(tmp_path, {0: 0.9, 1: 0.99}, {0: 0.9, 1: 0.9})
    gap = average_gaps(Trace(sides[0]), Trace(sides[1]), {0: 0, 1: 1}).gap
    assert gap is not None
    assert (gap.rank, gap.headline.code) == (1, VerdictCode.AVERAGE_DECAY_DIFFERS)


@pytest.mark.parametrize(
    ("target", "is_named"), [({0: 0.9}, True), ({0: 0.9, 1: 0.5}, False)], ids=["none on one rank", "another"]
)
def test_what_is_evaluated_with_it_follows(target: dict[int, float], is_named: bool, tmp_path: Path) -> None:
    """Without a replay every layer of the averaged model differs by itself."""
    sides = ran(tmp_path, target, {0: 0.9, 1: 0.9}, level="mix")
    found = diagnose(*sides, output=tmp_path / "out").findings
    assert found, [(one.headline, one.site, one.rank, one.phase) for one in found]
    codes = [one.headline.code for one in found]
    assert codes.count(StagesCode.AVERAGED_ON_RANKS) == is_named
    assert not is_named or {one.rank for one in found} == {1}
    assert not is_named or len(found) == 1
