"""What export writes, given to the real msprobe 26.2.0."""

from __future__ import annotations

import csv
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.importers.made_trace import small_model
from trueup.importers import open_trace
from trueup.importers.msprobe.export import export_msprobe

pytestmark = [pytest.mark.msprobe, pytest.mark.slow, pytest.mark.xdist_group("msprobe")]


def run(command: list[str], *arguments: str | Path) -> str:
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def compare(command: list[str], target: Path, golden: Path, out: Path) -> list[dict[str, str]]:
    """Rows of msprobe's own comparison of two steps."""
    run(command, "compare", "-tp", target, "-gp", golden, "-o", out)
    (file,) = out.glob("compare_result_*.csv")
    with file.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(
    "name", ["base/mix_statistics_statistics", "base/mix_statistics_md5", "accumulation/xor"]
)
def test_a_dump_and_its_export_are_equal_to_msprobe(
    msprobe_command: list[str], dumps: Path, tmp_path: Path, name: str
) -> None:
    export_msprobe(open_trace(dumps / name), tmp_path / "again")
    compared = compare(msprobe_command, tmp_path / "again/step0", dumps / name / "step0", tmp_path / "out")
    assert len(compared) > 100
    assert {row["Result"] for row in compared} == {"pass"}
    assert all(row["NPU Name"] == row["Bench Name"] for row in compared)
    for column in ("Max diff", "L2norm diff"):
        assert {row[column] for row in compared if column in row} <= {"0", "0.0", "N/A", "nan"}


def test_a_difference_is_seen_through_an_export(
    msprobe_command: list[str], dumps: Path, tmp_path: Path
) -> None:
    name = "mix_statistics_md5"
    for side in ("base", "rope_bf16"):
        export_msprobe(open_trace(dumps / side / name), tmp_path / side)
    ours = compare(msprobe_command, tmp_path / "rope_bf16/step0", tmp_path / "base/step0", tmp_path / "ours")
    theirs = compare(
        msprobe_command,
        dumps / "rope_bf16" / name / "step0",
        dumps / "base" / name / "step0",
        tmp_path / "theirs",
    )
    assert [(r["NPU Name"], r["Result"]) for r in ours] == [(r["NPU Name"], r["Result"]) for r in theirs]
    assert {row["Result"] for row in ours} != {"pass"}


@pytest.mark.parametrize("mode", ["statistics", "md5", "tensor"])
def test_a_captured_trace_is_accepted_in_every_mode(
    msprobe_command: list[str], tmp_path: Path, mode: str
) -> None:
    if mode == "tensor":
        pytest.importorskip("torch")
    for name, scale in (("target", 1.5), ("golden", 1.0)):
        run_folder = small_model(
            tmp_path / f"run_{name}", scale=scale, crc32=mode == "md5", values=mode == "tensor"
        )
        export_msprobe(open_trace(run_folder), tmp_path / name)
    compared = compare(
        msprobe_command, tmp_path / "target/step0", tmp_path / "golden/step0", tmp_path / "out"
    )
    wanted = {"statistics": "NormRelativeErr", "md5": "NPU MD5", "tensor": "Cosine"}[mode]
    assert wanted in compared[0]
    rows = {row["NPU Name"]: row for row in compared}
    changed = rows["Tensor.__add__.0.forward.output.0"]
    same = rows["Module.emb.Embedding.forward.0.output.0"]
    if mode == "statistics":
        assert changed["NormRelativeErr"].startswith("50.0")
        assert same["NormRelativeErr"] == "0"
    elif mode == "md5":
        assert changed["NPU MD5"] != changed["BENCH MD5"]
        assert same["NPU MD5"] == same["BENCH MD5"]
    else:
        assert float(changed["MaxAbsErr"]) > 0
        assert float(same["MaxAbsErr"]) == 0
    assert "loss = model(x)" in rows["Module.emb.Embedding.forward.0.input.0"]["NPU_Stack_Info"]


def test_distributed_dumps_pair_by_rank(msprobe_command: list[str], dumps: Path, tmp_path: Path) -> None:
    for side in ("ddp_base", "ddp_rope_bf16"):
        export_msprobe(open_trace(dumps / side), tmp_path / side)
    run(
        msprobe_command,
        "compare",
        "-tp",
        tmp_path / "ddp_rope_bf16/step0",
        "-gp",
        tmp_path / "ddp_base/step0",
        "-o",
        tmp_path / "out",
    )
    assert {f.name.rpartition("_")[0] for f in (tmp_path / "out").iterdir()} == {
        "compare_result_rank0",
        "compare_result_rank1",
    }


def test_graph_visualize_draws_one_and_pairs_two(
    msprobe_command: list[str], dumps: Path, tmp_path: Path
) -> None:
    for side in ("base", "rope_bf16"):
        export_msprobe(open_trace(dumps / side / "mix_statistics_statistics"), tmp_path / side)
    run(msprobe_command, "graph_visualize", "-tp", tmp_path / "base/step0/proc1", "-o", tmp_path / "one")
    run(msprobe_command, "graph_visualize", "-tp", tmp_path / "rope_bf16/step0/proc1",
        "-gp", tmp_path / "base/step0/proc1", "-o", tmp_path / "two")  # fmt: skip
    for folder in ("one", "two"):
        (file,) = (tmp_path / folder).glob("*.vis.db")
        with sqlite3.connect(file) as graph:
            (nodes,) = graph.execute("select count(*) from tb_nodes").fetchone()
            names = {name for (name,) in graph.execute("select node_name from tb_nodes")}
        assert nodes > 900
        assert "Module.layers.2.attn.Attn.forward.0" in names


def test_graph_visualize_draws_a_captured_trace(msprobe_command: list[str], tmp_path: Path) -> None:
    (folder,) = export_msprobe(open_trace(small_model(tmp_path / "run")), tmp_path / "dump")
    run(msprobe_command, "graph_visualize", "-tp", folder, "-o", tmp_path / "graph")
    (file,) = (tmp_path / "graph").glob("*.vis.db")
    with sqlite3.connect(file) as graph:
        rows = dict(graph.execute("select node_name, up_node from tb_nodes").fetchall())
    assert rows["Tensor.__add__.0.forward"] == "Module.block.Block.forward.0"
