"""Which processes a finding is about: told from factors, groups and copies, and on runs of two processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trueup.diagnosing.whose import (
    axis_of_copies,
    axis_of_factor,
    axis_of_factors,
    axis_of_group,
    axis_that_parts,
    of_ranks,
)
from trueup.types.finding import Basis, Finding, Stage
from trueup.types.layout import Layout

MESH = Layout(mesh={"pp": 1, "dp": 2, "tp": 4})
SQUARE = Layout(mesh={"dp": 2, "tp": 2})


def test_a_factor_names_the_axis_of_that_size_and_no_other() -> None:
    assert axis_of_factor(4.0, MESH) == axis_of_factor(0.25, MESH) == "tp"
    assert axis_of_factor(2.0, MESH) == "dp"
    assert axis_of_factor(3.0, MESH) is axis_of_factor(0.0, MESH) is axis_of_factor(1.0, MESH) is None
    assert axis_of_factor(2.0, SQUARE) is None
    assert axis_of_factor(2.0, SQUARE, first=("tp",)) == "tp"


def test_ranks_that_differ_along_one_axis_name_it() -> None:
    assert axis_of_group([0, 4], MESH) == "dp"
    assert axis_of_group([4, 5, 6, 7], MESH) == "tp"
    assert axis_of_group(range(8), MESH) is axis_of_group([3], MESH) is None
    assert axis_that_parts([1, 3], range(4), SQUARE) == "tp"
    assert axis_that_parts([2], range(4), SQUARE) is axis_that_parts(range(4), range(4), SQUARE) is None


def test_ranks_with_factors_of_their_own() -> None:
    same, apart = dict.fromkeys(range(4), 0.5), {0: 0.5, 1: 0.4, 2: 0.5, 3: 0.4}
    assert axis_of_factors(apart, same, SQUARE) == "tp"
    assert axis_of_factors(apart, apart, SQUARE) is axis_of_factors(same, same, SQUARE) is None


class Held:
    def __init__(self, digest: int) -> None:
        self.digest = digest


def test_copies_that_only_the_reference_has_alike() -> None:
    def ranked(*digests: int) -> Any:
        return [(rank, Held(digest)) for rank, digest in enumerate(digests)]

    assert axis_of_copies(ranked(1, 2, 1, 2), ranked(5, 5, 5, 5), SQUARE) == "tp"
    assert axis_of_copies(ranked(1, 1, 2, 2), ranked(5, 5, 5, 5), SQUARE) == "dp"
    assert axis_of_copies(ranked(1, 1, 1, 1), ranked(5, 5, 5, 5), SQUARE) is None
    assert axis_of_copies(ranked(1, 2, 3, 4), ranked(5, 6, 7, 8), SQUARE) is None


def test_a_finding_of_some_ranks_says_which() -> None:
    finding = Finding(stage=Stage.WEIGHTS, headline="", module=None, site=None, basis=Basis.RECORDED)
    assert of_ranks(finding, {3, 1}, range(4), SQUARE).ranks == (1, 3)
    assert of_ranks(finding, {3, 1}, range(4), SQUARE).axis == "tp"
    assert of_ranks(finding, range(4), range(4), SQUARE) is finding
    assert of_ranks(finding, (), range(4), SQUARE) is finding


def captured(base: str, entry: str | None, folder: str) -> None:
    """In every process: two steps of a program of the collection, ``alone`` the same in one process."""
    import torch
    from bugzoo.bases import bases
    from bugzoo.entries import entries
    from bugzoo.trainer import make_trainer

    import trueup
    from trueup.capture.declared import withdraw_layout

    torch.set_num_threads(1)
    withdraw_layout()  # by the program before in this process
    name, _, alone = base.partition(" ")
    program = bases()[name].alone if alone else bases()[name]
    assert program is not None
    trainer = make_trainer(program)
    try:
        if entry is not None:
            entries()[entry].plant(trainer)
        values = ["module", "parameter", "labels", "configuration"]
        with trueup.Tracer(folder, level="L0", steps="0-1", store_values_of=values, overwrite=True):
            for _ in range(2):
                trainer.step()
    finally:
        trainer.close()


CASES = {
    "own-tokens-counted": ("trainer-context", ("forward", "cp", ())),
    "positions-of-own-part": ("trainer-context", ("data", "cp", ())),
    "repeat-context": ("trainer-context", None),
    "norm-of-own-shards": ("gpt-fsdp", ("reduction", "world", ())),
}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    from tests.trainer.worlds import world

    @cache
    def made(base: str) -> Path:
        folder = tmp_path_factory.mktemp("reference") / base
        world(2).run("tests.diagnosing.test_whose:captured", base, None, str(folder))
        return folder

    return made


@pytest.mark.torch
@pytest.mark.distributed
@pytest.mark.xdist_group("worlds")
@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_diagnosed(name: str, references: Callable[[str], Path], tmp_path: Path) -> None:
    from tests.trainer.worlds import world
    from trueup.diagnosing.pipeline import diagnose

    base, expected = CASES[name]
    world(2).run("tests.diagnosing.test_whose:captured", base, name, str(tmp_path / "run"))
    found = diagnose(tmp_path / "run", references(base), output=tmp_path / "out", noise=False)
    if expected is None:
        assert found.outcome.value == "agree", found.headline
    else:
        assert found.verdict is not None
        assert (found.verdict.stage.value, found.verdict.axis, found.verdict.ranks) == expected


@pytest.mark.torch
@pytest.mark.distributed
@pytest.mark.xdist_group("worlds")
def test_an_input_that_one_layout_alone_gives_names_the_axis_it_is_cut_along(tmp_path: Path) -> None:
    from tests.trainer.worlds import world
    from trueup.diagnosing.pipeline import diagnose

    run, alone = tmp_path / "run", tmp_path / "alone"
    captured_by = "tests.diagnosing.test_whose:captured"
    world(2).run(captured_by, "trainer-context", "positions-of-own-part", str(run))
    world(1).run(captured_by, "trainer-context alone", None, str(alone))
    first = diagnose(run, alone, output=tmp_path / "out", noise=False).findings[0]
    assert (first.stage, first.axis) == (Stage.DATA, "cp")
    world(2).run(
        captured_by, "trainer-context", "own-tokens-counted", str(run)
    )  # its positions are all there
    first = diagnose(run, alone, output=tmp_path / "out", noise=False).findings[0]
    assert (first.stage, first.axis) == (Stage.FORWARD, "cp")
