"""MindSpore and PyTorch models by several hands: against hand-written pairs, compared, with faults."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.matching.implementations.capture import captured as captured_torch
from tests.matching.implementations.capture import matched
from tests.matching.implementations.capture_mindspore import captured, dumped
from tests.matching.implementations.sizes import ALL_SIZES
from tests.matching.implementations.truth import assert_same_numbers, numbers_of, scored
from trueup.comparing.run import compare
from trueup.importers import open_trace

pytestmark = [pytest.mark.mindspore, pytest.mark.xdist_group("implementations")]

MODULES, OUTPUTS = 0.98, 0.90
"""the bars: module sites, API outputs that both sides have; no pair may be wrong"""
PAIRS = [
    ("mindspore", "torchtitan", "alike"),
    ("mindspore", "megatron", "alike"),
    ("mindspore_sorted_moe", "torch_moe", "experts"),
]
"""more of them, and more faults, are in benchmarks/matching.py"""
FAULTS = [
    ("mindspore", "torchtitan", "alike", "norm_eps", ("network.stack.1.before_feed", "forward")),
    ("mindspore_sorted_moe", "torch_moe", "experts", "expert", ("network.stack.1.feed", "param")),
]


class Runs:
    """Captures, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[tuple[str, str], Path]()

    def of(self, name: str, sizes: str) -> Path:
        key = name, sizes
        if key not in self._made:
            capture = captured if name.startswith("mindspore") else captured_torch
            self._made[key] = capture(self._folder, name, sizes=sizes)
        return self._made[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("mine", "theirs", "sizes"), PAIRS)
def test_bars(runs: Runs, mine: str, theirs: str, sizes: str, turned: bool) -> None:
    target, reference = (theirs, mine) if turned else (mine, theirs)
    for match in matched(runs.of(target, sizes), runs.of(reference, sizes)):
        score = scored(match, target, reference, ALL_SIZES[sizes])
        assert score.wrong == []
        assert score.module_share >= MODULES, score.missed
        assert score.output_share >= OUTPUTS, score.missed
        assert score.outputs_expected > 50


@pytest.mark.parametrize(("mine", "theirs", "sizes"), PAIRS)
def test_the_hand_written_tensors_are_the_same_numbers(
    runs: Runs, mine: str, theirs: str, sizes: str
) -> None:
    assert_same_numbers(
        numbers
        for name in (mine, theirs)
        for numbers in numbers_of(open_trace(runs.of(name, sizes)), 1, name, ALL_SIZES[sizes])
        if not numbers[0].startswith("masked")  # with another number
    )


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("mine", "theirs", "sizes"), PAIRS)
def test_equal_runs_agree(runs: Runs, mine: str, theirs: str, sizes: str, turned: bool) -> None:
    target, reference = (theirs, mine) if turned else (mine, theirs)
    result = compare(runs.of(target, sizes), runs.of(reference, sizes))
    assert result.exit_code == 0, result.summary["verdict"]
    assert result.summary["counts"]["different"] == 0


@pytest.mark.parametrize(("mine", "theirs", "sizes", "change", "place"), FAULTS)
def test_a_fault_is_named(
    runs: Runs, tmp_path: Path, mine: str, theirs: str, sizes: str, change: str, place: tuple[str, str]
) -> None:
    faulty = captured(tmp_path, mine, sizes=sizes, change=change)
    result = compare(faulty, runs.of(theirs, sizes))
    verdict = result.summary["verdict"]
    assert result.exit_code == 1
    assert (verdict["owner"], verdict["phase"]) == place, verdict
    for match in matched(faulty, runs.of(theirs, sizes)):
        assert scored(match, mine, theirs, ALL_SIZES[sizes]).wrong == []


def test_less_evidence_never_makes_a_bound_tighter(runs: Runs, tmp_path: Path) -> None:
    """Of transposed weights statistics bound a difference from below alone: what the first update left in
    them is not taken for nothing in the second step."""
    full = compare(runs.of("mindspore", "alike"), runs.of("torchtitan", "alike"))
    few = compare(
        captured(tmp_path, "mindspore", sizes="alike", task="statistics"),
        captured_torch(tmp_path, "torchtitan", sizes="alike", task="statistics"),
    )
    assert few.exit_code == 0, few.summary["verdict"]
    output = (pl.col("step") == 1) & (pl.col("phase") == "forward") & (pl.col("name") == "network.predict")
    known, guessed = (
        result.frame().filter(output & (pl.col("slot") == "output.0")).row(0, named=True)
        for result in (full, few)
    )
    assert (known["evidence"], guessed["evidence"]) == ("values", "sketch")
    assert guessed["tolerance"] >= known["tolerance"]


def test_a_graph_mode_dump_is_paired_and_agrees(tmp_path: Path) -> None:
    """Of this MindSpore, over two steps; beside a reference with a fault, too."""
    sizes = ALL_SIZES["small"]
    reference = captured_torch(tmp_path, "torchtitan", sizes="small", sgd=True)
    dump = dumped(tmp_path, sizes="small")
    for match in matched(dump, reference):
        score = scored(match, "mindspore_graph", "torchtitan", sizes)
        assert score.wrong == []
        assert min(score.module_share, score.output_share) >= OUTPUTS, score.missed
    assert compare(dump, reference).exit_code == 0
    faulty = captured_torch(tmp_path, "torchtitan", sizes="small", change="norm_eps", sgd=True)
    verdict = compare(dump, faulty).summary["verdict"]
    assert (verdict["owner"], verdict["phase"]) == ("stack.1.before_feed", "forward"), verdict
