"""Sequences cut among ranks: runs of tokens, two runs that balance causal attention, every n-th token."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.comparing.reading import nested
from tests.merging.contexts import traced
from trueup.comparing.run import Comparison, compare
from trueup.types.codes import MergingCode

pytestmark = [pytest.mark.torch, pytest.mark.distributed, pytest.mark.xdist_group("worlds")]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traced("", tmp_path_factory.mktemp("one") / "trace", task="tensor")


def _placements(found: Comparison) -> set[str]:
    (inferred,) = nested(found.content.notes, MergingCode.LAYOUT_INFERRED)
    return {name for name, _ in inferred.numbers}


@pytest.mark.parametrize(
    ("order", "placement"),
    [("runs", "shard(1)"), ("zigzag", "shard(1,zigzag)"), ("striped", "shard(1,blocks=8)")],
)
def test_the_same_training_with_sequences_cut(order: str, placement: str, one: Path, tmp_path: Path) -> None:
    found = compare(traced(order, tmp_path / order, task="tensor"), one)
    status = found.frame()["status"].cast(pl.String)
    assert found.exit_code == 0, (found.summary["verdict"], found.summary["notes"])
    assert set(status.unique()) <= {"equal", "within_noise", "unmatched"}
    assert placement in _placements(found)
    loss = found.frame().filter(pl.col("slot").cast(pl.String) == "labels")
    assert loss["status"].cast(pl.String).to_list() == ["equal"]


def test_the_processes_may_be_the_reference(one: Path, tmp_path: Path) -> None:
    assert compare(one, traced("zigzag", tmp_path / "zigzag", task="tensor")).exit_code == 0


def test_four_processes(one: Path, tmp_path: Path) -> None:
    assert compare(traced("zigzag", tmp_path / "zigzag", size=4, task="tensor"), one).exit_code == 0


def test_without_values_the_order_is_not_known_and_nothing_is_called_a_fault(tmp_path: Path) -> None:
    found = compare(traced("zigzag", tmp_path / "many", level="L0"), traced("", tmp_path / "one", level="L0"))
    assert found.exit_code != 1, (found.summary["verdict"], found.summary["notes"])
    assert "scattered(1)" in _placements(found)


@pytest.mark.parametrize(("fault", "place"), [("mask", "layers.1.attention.out"), ("positions", "places")])
@pytest.mark.parametrize("order", ["zigzag", "runs"])
def test_a_fault_is_found_where_it_is(order: str, fault: str, place: str, one: Path, tmp_path: Path) -> None:
    many = traced(order, tmp_path / "many", fault, task="tensor")
    found = compare(many, one)
    verdict = found.summary["verdict"]
    assert (found.exit_code, verdict["phase"]) == (1, "forward")
    assert verdict["where"].startswith(place), verdict


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_other_tokens_are_no_cut(task: str, tmp_path: Path) -> None:
    """The twin: one rank is given one other token."""
    one = traced("", tmp_path / "one", level="L0", task=task)
    found = compare(traced("zigzag", tmp_path / "many", "token", level="L0", task=task), one)
    verdict = found.summary["verdict"]
    assert found.exit_code == 1
    assert verdict["where"] == "(root) · input.0"
