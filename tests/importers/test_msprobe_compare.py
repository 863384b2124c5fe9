"""Dumps compared as traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importers.made_trace import small_model
from trueup.comparing.run import compare
from trueup.importers import open_trace
from trueup.importers.msprobe.export import export_msprobe


@pytest.mark.parametrize(
    "mode", ["L0_statistics_statistics", "mix_statistics_statistics", "mix_statistics_md5"]
)
def test_rope_in_bf16_is_named_in_layer_2(dumps: Path, mode: str) -> None:
    verdict = compare(dumps / "rope_bf16" / mode, dumps / "base" / mode).summary["verdict"]
    assert (verdict["outcome"], verdict["owner"], verdict["phase"]) == ("differ", "layers.2.attn", "forward")


def test_and_under_distributed_data_parallel(dumps: Path) -> None:
    verdict = compare(dumps / "ddp_rope_bf16", dumps / "ddp_base").summary["verdict"]
    assert verdict["owner"] == "module.layers.2.attn"


@pytest.mark.parametrize(
    "name",
    [
        "base/L0_statistics_statistics",
        "base/mix_statistics_statistics",
        "base/mix_statistics_md5",
        "ddp_base",
        "mindspore_cpu/mix_statistics",
        "mindspore_cpu/mix_tensor",
        "accumulation/md5",
        "accumulation/xor",
    ],
)
def test_a_dump_agrees_with_itself(dumps: Path, name: str) -> None:
    compared = compare(dumps / name, dumps / name)
    assert compared.exit_code == 0
    assert compared.summary["counts"]["num_unmatched"] == 0
    if name.endswith(("md5", "xor")):
        assert compared.summary["counts"]["equal"] == compared.summary["counts"]["compared"]


def test_a_trace_agrees_with_its_own_export(tmp_path: Path) -> None:
    run = small_model(tmp_path / "run")
    export_msprobe(open_trace(run), tmp_path / "dump")
    compared = compare(run, tmp_path / "dump")
    counts = compared.summary["counts"]
    assert counts["different"] == counts["undecided"] == 0
    assert counts["equal"] >= 15, "by the CRC-32 that both hold"


def test_the_same_model_with_and_without_its_wrapper_pairs(dumps: Path) -> None:
    compared = compare(dumps / "ddp_base/step0/rank0", dumps / "base/mix_statistics_statistics")
    forward = compared.frame().filter(phase="forward", status="unmatched")
    assert forward.height <= 2, "the root's own records, which msprobe keeps only under a wrapper"
