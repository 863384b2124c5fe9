"""Programs that say nothing of their layout: it is read from their tensors, inferred, or given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.comparing.reading import nested
from tests.merging.programs import traced
from trueup.comparing.options import CompareOptions
from trueup.comparing.run import compare
from trueup.errors import ConfigError
from trueup.merging.layout_file import read_layout
from trueup.types.codes import MergingCode

pytestmark = [pytest.mark.torch, pytest.mark.distributed, pytest.mark.xdist_group("worlds")]

GIVEN = """
version: 1
mesh: {tp: 2}
parameters:
  - {name: "*.up.*", tp: shard(0)}
  - {name: "*.down.weight", tp: shard(1)}
  - {name: "*", tp: invariant}
tensors:
  - {name: "*.up", slot: input.0, tp: replicate}
  - {name: "*.up", slot: output.0, tp: shard(-1)}
  - {name: "*.down", slot: input.0, tp: shard(-1)}
  - {name: "*.down", slot: output.0, tp: partial}
  - {name: "*", tp: invariant, batch: invariant}
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traced("one", 1, tmp_path_factory.mktemp("one") / "trace", task="tensor")


@pytest.mark.parametrize("how", ["ddp", "ddp marked", "fsdp", "tensor"])
def test_a_layout_that_nobody_says_is_inferred(how: str, one: Path, tmp_path: Path) -> None:
    found = compare(traced(how, 2, tmp_path / how, task="tensor"), one)
    frame = found.frame()
    assert found.exit_code == 0, (found.summary["verdict"], found.summary["notes"])
    status = frame["status"].cast(pl.String)
    assert set(status.unique()) <= {"equal", "within_noise", "unmatched"}
    assert {"forward", "backward", "param", "optimizer"} <= set(
        frame.filter(status.is_in(["equal", "within_noise"]))["phase"].unique()
    )
    (inferred,) = nested(found.content.notes, MergingCode.LAYOUT_INFERRED)
    placements = [name for name, _ in inferred.numbers]
    shard = "shard(0" if how != "tensor" else "shard(1)"
    assert any(name.startswith(shard) for name in placements)


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traced("one gated", 1, tmp_path_factory.mktemp("gated") / "trace", task="tensor")


def test_gate_and_up_in_one_weight_are_each_cut(gated: Path, tmp_path: Path) -> None:
    found = compare(traced("tensor gated", 2, tmp_path / "many", task="tensor"), gated)
    status = found.frame()["status"].cast(pl.String)
    assert found.exit_code == 0, (found.summary["verdict"], found.summary["notes"])
    assert set(status.unique()) <= {"equal", "within_noise", "unmatched"}
    (inferred,) = nested(found.content.notes, MergingCode.LAYOUT_INFERRED)
    assert {"shard(0,blocks=2)", "shard(2,blocks=2)"} <= {name for name, _ in inferred.numbers}


def test_without_values_the_order_of_a_weight_is_not_known(tmp_path: Path) -> None:
    one = traced("one gated", 1, tmp_path / "one", level="L0")
    found = compare(traced("tensor gated", 2, tmp_path / "many", level="L0"), one)
    assert found.exit_code != 1, (found.summary["verdict"], found.summary["notes"])
    (inferred,) = nested(found.content.notes, MergingCode.LAYOUT_INFERRED)
    assert "scattered" in {name for name, _ in inferred.numbers}


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_weight_of_blocks_that_differs_is_found(task: str, tmp_path: Path) -> None:
    one = traced("one gated", 1, tmp_path / "one", level="L0", task=task)
    found = compare(traced("tensor gated wrong weight", 2, tmp_path / "many", level="L0", task=task), one)
    assert found.exit_code == 1
    assert "last.up.weight" in found.summary["verdict"]["where"]


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_ranks_read_what_one_process_reads_in_turn(task: str, tmp_path: Path) -> None:
    one = traced("one accumulated", 1, tmp_path / "one", level="L0", task=task)
    found = compare(traced("ddp", 2, tmp_path / "many", level="L0", task=task), one)
    assert found.exit_code == 0, (found.summary["verdict"], found.summary["notes"])
    status = found.frame()["status"].cast(pl.String)
    assert set(status.unique()) <= {"equal", "within_noise"}
    assert {"forward", "backward", "param", "param_grad", "optimizer"} <= set(found.frame()["phase"])


def test_a_gradient_that_is_wrong_on_one_of_such_ranks_differs(tmp_path: Path) -> None:
    one = traced("one accumulated", 1, tmp_path / "one", level="L0")
    found = compare(traced("ddp fault", 2, tmp_path / "many", level="L0"), one)
    assert found.exit_code == 1
    assert found.content.verdict.phase in ("param_grad", "optimizer", "param")


@pytest.mark.parametrize(("how", "status"), [("tensor moved", "equal"), ("tensor moved fault", "origin")])
def test_parts_whose_dims_were_moved_make_the_whole(how: str, status: str, tmp_path: Path) -> None:
    one = traced("one moved", 1, tmp_path / "one", level="L0", task="tensor")
    found = compare(traced(how, 2, tmp_path / "many", level="L0", task="tensor"), one)
    at = found.frame().filter(pl.col("module") == "moved", pl.col("slot") == "output.0")
    assert at["status"].cast(pl.String).to_list() == [status]
    assert found.exit_code == (status != "equal")


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traced("stages", 1, tmp_path_factory.mktemp("layers") / "trace", level="L0", task="tensor")


def test_stages_that_count_their_layers_anew_are_told_apart(layers: Path, tmp_path: Path) -> None:
    found = compare(traced("stages", 2, tmp_path / "many", level="L0", task="tensor"), layers)
    assert found.exit_code == 0, (found.summary["verdict"], found.summary["notes"])
    frame = found.frame()
    assert set(frame["status"].cast(pl.String)) <= {"equal", "within_noise"}
    assert {f"layers.{number}" for number in range(4)} <= set(frame["module"].cast(pl.String))
    (whole,) = nested(found.content.notes, MergingCode.WHOLE_TENSORS)
    assert whole.facts["mesh"] == "pp 2"


def test_a_fault_in_the_last_stage_has_its_number_in_the_whole(layers: Path, tmp_path: Path) -> None:
    found = compare(traced("stages wrong norm", 2, tmp_path / "many", level="L0", task="tensor"), layers)
    assert (found.exit_code, found.content.verdict.owner) == (1, "layers.3.norm")


def test_a_gradient_that_one_rank_changed_is_seen_and_the_rank_is_named(one: Path, tmp_path: Path) -> None:
    found = compare(traced("ddp fault", 2, tmp_path / "fault", task="tensor"), one)
    assert found.exit_code == 1
    assert "first.norm.weight" in found.summary["verdict"]["where"]
    copies = nested(found.content.notes, MergingCode.COPIES_OF_TENSOR_DIFFER)
    of_norm = [one for one in copies if "first.norm.weight" in str(one.place("record"))]
    assert {one.parts[0].place("ranks") for one in of_norm} == {("1",)}


def test_a_layout_is_given_in_yaml(one: Path, tmp_path: Path) -> None:
    many, file = traced("tensor", 2, tmp_path / "many", task="tensor"), tmp_path / "layout.yaml"
    file.write_text(GIVEN)
    found = compare(many, one, options=CompareOptions(target_layout=file))
    assert found.exit_code == 0, (found.summary["verdict"], found.summary["notes"])
    (whole,) = nested(found.content.notes, MergingCode.WHOLE_TENSORS)
    assert whole.place("source") == "from layout.yaml"
    file.write_text(GIVEN.replace("shard(-1)", "partial"))
    assert compare(many, one, options=CompareOptions(target_layout=file)).exit_code != 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mesh: {tp: 2}\nparamters: []", "known keys: version, mesh"),
        ("mesh: {}", "at least one axis"),
        ("mesh: {tp: 0}", "greater than or equal to 1"),
        ("mesh: {tp: 2}\nparameters: [{name: a, tp: shard}]", "is not a placement"),
        ("mesh: {tp: 2}\nparameters: [{name: a, dp: shard(0)}]", "names axis 'dp'"),
        ("mesh: {tp: 2}\nparameters: [{name: a, tp: 3}]", "3 is not a placement"),
        ("mesh: {pp: 2}\npipeline: {stages: [[0]]}", "axis pp has 2"),
        ("- a", "does not hold a mapping"),
        ("mesh: {tp: 2", "is not YAML"),
    ],
)
def test_a_layout_file_with_a_mistake_says_which(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "layout.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="layout.yaml.*" + said.replace("{", ".")):
        read_layout(file)


def test_other_mistakes(one: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_layout(tmp_path / "none.yaml")
    file = tmp_path / "layout.yaml"
    file.write_text(GIVEN.replace("tp: 2", "tp: 4"))
    many = traced("tensor", 2, tmp_path / "many")
    given: dict[str, Any] = {"target_layout": file}
    with pytest.raises(ConfigError, match=r"holds 2 ranks, its layout is of 4 processes \(tp 4\)"):
        compare(many, one, options=CompareOptions(**given))
    with pytest.raises(ConfigError, match="do not say it"):
        compare(many, many, options=CompareOptions(merge=True))
