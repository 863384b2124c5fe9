"""Sequences cut among ranks: runs of tokens, two runs that balance causal attention, every n-th token."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.comparing.reading import nested
from tests.merging.contexts import traced
from trueup.comparing.run import Comparison, compare
from trueup.diagnosing.pipeline import diagnose
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
    assert loss["status"].cast(pl.String).to_list() == ["equal", "equal"]


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


# -- other ranks read other rows ------------------------------------------

PLACEMENT = {"runs": "shard(1)", "zigzag": "shard(1,zigzag)", "striped": "shard(1,blocks=8)"}


@pytest.mark.parametrize("by", ["hand", "ddp", "fsdp"])
@pytest.mark.parametrize(
    ("order", "more"),
    [("zigzag", {}), ("runs", {"strided": True}), ("striped", {"dealt": "alternately"})],
    ids=["neighbours share a sequence", "every second rank does", "rows dealt alternately"],
)
def test_sequences_cut_and_rows_dealt(
    order: str, more: dict[str, object], by: str, one: Path, tmp_path: Path
) -> None:
    many = traced(order, tmp_path / "many", size=4, more={"groups": 2, "by": by, **more}, task="tensor")
    found = compare(many, one)
    status = found.frame()["status"].cast(pl.String)
    assert found.exit_code == 0, (found.summary["verdict"], found.summary["notes"])
    assert set(status.unique()) <= {"equal", "within_noise"}
    assert PLACEMENT[order] in _placements(found)


@pytest.mark.parametrize("by", ["hand", "fsdp"])
def test_the_one_process_may_read_the_rows_in_turn(by: str, tmp_path: Path) -> None:
    one = traced("", tmp_path / "one", more={"calls": 2}, task="tensor")
    many = traced("zigzag", tmp_path / "many", size=4, more={"groups": 2, "by": by}, task="tensor")
    for found in (compare(many, one), compare(one, many)):
        status = found.frame()["status"].cast(pl.String)
        assert (found.exit_code, set(status.unique())) == (0, {"equal", "within_noise"})


def test_sequences_cut_among_all_in_other_microbatches(one: Path, tmp_path: Path) -> None:
    many = traced("zigzag", tmp_path / "many", more={"calls": 2, "by": "ddp"}, task="tensor")
    found = compare(many, one)
    status = pl.col("status").cast(pl.String)
    rest = found.frame().filter(~status.is_in(["equal", "within_noise"]))
    assert found.exit_code != 1, (found.summary["verdict"], found.summary["notes"])
    assert set(rest.select(pl.col("phase").cast(pl.String), status).rows()) <= {("loss", "undecided")}


FAULTS = {
    "mask": ("layers.1.attention.out · input.0", 3),
    "reduce": ("layers.1.attention.qkv · gradient of output.0", 1),
    "token": ("(root) · input.0", 1),
}
"""fault -> where it shows, and the rank that makes it"""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("calls", [1, 2])
def test_the_rank_at_fault_is_named(fault: str, calls: int, tmp_path: Path) -> None:
    """The twin of those that agree: one rank alone is wrong, in its part of some rows."""
    where, rank = FAULTS[fault]
    one = traced("", tmp_path / "one", more={"calls": calls}, task="tensor")
    more = {"groups": 2, "by": "fsdp", "rank": rank}
    many = traced("zigzag", tmp_path / "many", fault, size=4, more=more, task="tensor")
    found = compare(many, one)
    assert (found.exit_code, found.summary["verdict"]["where"]) == (1, where)
    first = diagnose(many, one, output=tmp_path / "out").findings[0]
    assert (first.ranks, first.axis) == ((rank,), None), first


def test_a_fault_of_all_ranks_names_none(one: Path, tmp_path: Path) -> None:
    more = {"groups": 2, "by": "fsdp"}
    many = traced("runs", tmp_path / "many", "positions", size=4, more=more, task="tensor")
    first = diagnose(many, one, output=tmp_path / "out").findings[0]
    assert first.ranks in ((), (1, 3))  # the first piece counts from 0 with the fault and without
    assert first.axis in (None, "cp")


def test_rows_of_another_stream_are_no_cut(one: Path, tmp_path: Path) -> None:
    """Less than half of the rows are found again: nothing is put together."""
    more = {"groups": 2, "by": "ddp", "seed": 5}
    many = traced("zigzag", tmp_path / "many", size=4, more=more, task="tensor")
    found = compare(many, one)
    assert found.exit_code != 0
    assert not any("cp" in str(note) for note in found.summary["notes"])
