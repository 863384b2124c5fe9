"""Every layout of the reference trainer, put together, is what one process did: real runs, compared whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.comparing.reading import nested
from tests.merging.runs import traced
from tests.trainer.layouts import GPT2, MOE, cut
from trueup.comparing.result import Comparison
from trueup.comparing.run import compare
from trueup.types.codes import MergingCode

pytestmark = [pytest.mark.torch, pytest.mark.distributed, pytest.mark.xdist_group("worlds")]
TP, PP, CP, EP = (
    f"{word}_size"
    for word in (
        "tensor_model_parallel",
        "pipeline_model_parallel",
        "context_parallel",
        "expert_model_parallel",
    )
)
SP = {"sequence_parallel": True}
DEEP = {"num_layers": 4}
TIED = {"untie_embeddings_and_output_weights": False}
Sections = dict[str, dict[str, Any]]
LAYOUTS: dict[str, tuple[int, Sections]] = {
    "tp2 sp tied absolute": (2, {"parallel": {TP: 2, **SP}, "model": {**TIED, **GPT2}}),
    "cp2 moe": (2, {"parallel": {CP: 2}, "moe": MOE}),
    "z1 ep2": (2, {"parallel": {"zero_level": "z1", EP: 2}, "moe": MOE}),
    "z3": (2, {"parallel": {"zero_level": "z3"}, "model": DEEP}),
    "pp2 vpp2": (2, {"parallel": {PP: 2, "virtual_pipeline_model_parallel_size": 2}, "model": DEEP}),
    "z2 tp2 sp": (4, {"parallel": {TP: 2, **SP, "zero_level": "z2"}}),
}
ONE_SIDED = ("positions", "labels", "mask", "gradient local", "core · input.3", "core · input.4")
"""what only some layouts have, or let be seen: positions, what the loss was made with, local gradients"""


def pair(folder: Path, name: str, dtype: str = "float64", **options: Any) -> tuple[Path, Path]:
    """The layout's trace, and that of one process on the same batch."""
    size, sections = LAYOUTS[name]
    plain = cut(sections, size, dtype)
    alone = {key: section for key, section in plain.items() if key != "parallel_config"}
    return traced(plain, size, folder / "many", **options), traced(alone, 1, folder / "one", **options)


def rows(found: Comparison, *statuses: str) -> pl.DataFrame:
    return found.frame().filter(pl.col("status").cast(pl.String).is_in(statuses))


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_tensors_of_a_layout_merge_to_those_of_one_process(name: str, tmp_path: Path) -> None:
    many, one = pair(tmp_path, name, task="tensor")
    found = compare(many, one)
    frame = found.frame()
    assert found.exit_code == 0, found.summary["verdict"]
    assert (
        frame.filter(pl.col("rel_l2").is_finite() & (pl.col("target_l2_norm") > 1e-9))["rel_l2"].max() < 1e-10
    )
    compared = rows(found, "equal", "within_noise")
    assert {"forward", "loss", "backward", "param", "param_grad", "optimizer"} == set(
        compared["phase"].unique()
    )
    assert rows(found, "undecided").height == 0
    odd = rows(found, "unmatched")
    left = [
        site for site in odd["site"] if not any(word in site for word in ONE_SIDED) and "input.2" not in site
    ]
    assert left == []
    sources = [one.place("source") for one in nested(found.content.notes, MergingCode.WHOLE_TENSORS)]
    assert "declared" in sources


def test_statistics_alone_tell_a_layout_from_a_fault(tmp_path: Path) -> None:
    """Sketches taken at their place add up: a layout agrees, a wrong weight in it does not."""
    many, one = pair(tmp_path, "tp2 sp tied absolute", "float32")
    agreed = compare(many, one)
    assert agreed.exit_code == 0, agreed.summary["verdict"]
    assert "sketch" in set(rows(agreed, "within_noise")["evidence"].cast(pl.String))
    size, sections = LAYOUTS["tp2 sp tied absolute"]
    other = cut({**sections, "training": {"seed": 8}}, size, "float32")
    assert compare(traced(other, size, tmp_path / "other"), one).exit_code == 1


def test_a_wrong_layout_does_not_merge_to_the_same(tmp_path: Path) -> None:
    """The table decides: with another one the same trace no longer agrees."""
    many, one = pair(tmp_path, "cp2 moe", task="tensor")
    manifest = json.loads((many / "manifest.json").read_text())
    text = json.dumps(manifest).replace("shard(1,zigzag)", "shard(1)")
    assert text != json.dumps(manifest)
    (many / "manifest.json").write_text(text)
    assert compare(many, one).exit_code == 1


def test_two_layouts_against_each_other(tmp_path: Path) -> None:
    tensor, _ = pair(tmp_path / "a", "z3", task="tensor")
    pipeline, _ = pair(tmp_path / "b", "pp2 vpp2", task="tensor")
    found = compare(tensor, pipeline)
    assert found.exit_code == 0, found.summary["verdict"]
    assert len(nested(found.content.notes, MergingCode.WHOLE_TENSORS)) == 2
