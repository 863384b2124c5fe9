"""``trueup inspect`` on real traces."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from trueup.cli import app
from trueup.cli.inspect_tables import print_records
from trueup.importers import open_trace

pytestmark = pytest.mark.torch


def inspect(*argv: object, capsys: pytest.CaptureFixture[str], status: int = 0) -> str:
    assert app.run(["inspect", *map(str, argv)]) == status
    said = capsys.readouterr()
    return said.err if status else said.out


def test_overview(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = inspect(runs / "reference", capsys=capsys)
    assert "pytorch 2." in said
    assert "level mix, task statistics, world size 1" in said
    assert "train.py" in said
    assert "steps 0-1; rank 0" in said
    lines = [line.split() for line in said.splitlines()]
    assert [line[:2] for line in lines if line[:1] in (["0"], ["1"])] == [["0", "0"], ["1", "0"]]
    assert " kB" in said


@pytest.mark.parametrize("width", [80, 100, 119, 120, 160])
def test_records_keep_within_the_terminal(runs: Path, width: int) -> None:
    trace = open_trace(runs / "reference")
    console = Console(force_terminal=True, width=width, file=io.StringIO(), color_system=None)
    print_records(trace, console, step=0, rank=0, find=None, limit=40)
    said = console.file.getvalue()
    assert max(map(len, said.splitlines())) <= width
    norms = [f"{one:.5g}" for one in trace.read(0, 0).summaries["l2_norm"].drop_nulls()]
    assert sum(f" {norm}" in said for norm in norms) >= 10, "no number is cut off"
    assert ("min, max" in said) == (width < 120)


def test_find_by_name_type_and_slot(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_name = inspect(runs / "reference", "--find", "functional.GELU", capsys=capsys)
    assert "1 · torch.nn.functional.gelu" in by_name
    assert "[5, 8]" in by_name
    assert "linear" not in by_name
    by_type = inspect(runs / "reference", "--find", "gelu", capsys=capsys)
    assert len(by_type.splitlines()) > len(by_name.splitlines())
    assert "exp_avg_sq" in inspect(runs / "reference", "--find", "exp_avg_sq", capsys=capsys)


def test_one_step(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = inspect(runs / "reference", "--step", 1, "--limit", 4, capsys=capsys)
    assert said.startswith("step 1, rank 0: ")
    assert "0.weight" in said
    assert "more; --limit N" in said
    assert len(said.splitlines()) == 7


def test_what_is_not_there_is_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "has no step 9; it has steps 0-1" in inspect(runs / "target", "--step", 9, capsys=capsys, status=2)
    assert "has no rank 3; it has rank 0" in inspect(runs / "target", "--rank", 3, capsys=capsys, status=2)
    assert "'xyzzy'" in inspect(runs / "target", "--find", "xyzzy", capsys=capsys, status=2)


def test_a_trace_without_a_whole_step(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(runs / "reference" / "manifest.json", tmp_path)
    assert "no complete step" in inspect(tmp_path, capsys=capsys)
    assert "no complete step" in inspect(tmp_path, "--find", "x", capsys=capsys, status=2)


def test_failures_and_limits_are_shown(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "reference", tmp_path / "run")
    path = tmp_path / "run" / "ranks" / "rank_00000.json"
    facts = json.loads(path.read_text())
    facts |= {
        "failures": [{"step": 1, "site": "[bold]x", "error": "boom"}],
        "limits": ["threads are not seen"],
    }
    path.write_text(json.dumps(facts))
    said = inspect(tmp_path / "run", capsys=capsys)
    assert "failure of capture (rank 0): step 1, [bold]x: boom" in said
    assert "limit (rank 0): threads are not seen" in said


def test_what_is_missing_is_shown(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(shutil.copytree(runs / "reference", tmp_path / "run"))
    assert app.run(["inspect", str(run)]) == 0
    assert "missing (" not in capsys.readouterr().out
    shutil.rmtree(run / "scalars")
    assert app.run(["inspect", str(run)]) == 0
    assert "missing (rank 0): scalars/rank_00000.jsonl is not there" in capsys.readouterr().out


def test_a_damaged_table_is_a_clear_error(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "reference", tmp_path / "run")
    (tmp_path / "run" / "step_000001" / "rank_00000" / "records.parquet").write_bytes(b"PAR1 no")
    assert "cannot be read" in inspect(tmp_path / "run", capsys=capsys, status=2)
