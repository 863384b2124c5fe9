"""``trueup dump-config`` from the command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.importers.mindspore_dumps import LINEAR, iteration, write_order, write_tensor
from trueup.cli import app


def dump_config(*argv: object, capsys: pytest.CaptureFixture[str], status: int = 0) -> tuple[str, str]:
    assert app.run(["dump-config", *map(str, argv)]) == status
    said = capsys.readouterr()
    return said.out, said.err


def test_written_and_evaluated_by_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my dump.json"
    out, err = dump_config(
        "--kind", "full", "--path", "/dump", "--iteration", "0|5-8", "--level", "o2", "-o", file,
        capsys=capsys,
    )  # fmt: skip
    assert json.loads(file.read_text())["common_dump_settings"]["iteration"] == "0|5-8"
    assert f"wrote {file}" in err
    shell = subprocess.run(
        ["bash", "-c", f'{out}\necho "$MINDSPORE_DUMP_CONFIG|$MS_ACL_DUMP_CFG_PATH"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shell.stdout == f"{file}|{file}\n"
    _, err = dump_config("--kind", "full", "--path", "/dump", "-o", file, capsys=capsys, status=2)
    assert "--overwrite" in err
    dump_config("--kind", "full", "--path", "/dump", "-o", file, "--overwrite", capsys=capsys)
    assert "e2e_dump_settings" in json.loads(file.read_text())


def test_every_flag_reaches_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "d.json"
    dump_config(
        "--kind", "condition", "--path", "/d", "--kernel", "MatMul", "--kernel", "name-regex(.+)",
        "--input-output", "output", "--ranks", "0,2-3", "--saved-data", "full",
        "--statistics", "max, nan count", "--net-name", "Llama", "-o", file, capsys=capsys,
    )  # fmt: skip
    settings = json.loads(file.read_text())["common_dump_settings"]
    assert settings["kernels"] == ["MatMul", "name-regex(.+)"]
    assert settings["support_device"] == [0, 2, 3]
    assert settings["statistic_category"] == ["max", "nan count"]
    assert (settings["dump_mode"], settings["input_output"], settings["net_name"]) == (1, 2, "Llama")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "--kind is missing"),
        (["--kind", "full"], "--path is missing"),
        (["--kind", "whole", "--path", "/d"], "--kind: expected one of: full, partial, overflow, condition"),
        (["--kind", "full", "--path", "/d", "--iteration", "a"], "--iteration"),
        (["--kind", "full", "--path", "/d", "--devices", "all"], "--devices"),
        (
            ["--kind", "full", "--path", "/d", "--saved-data", "some"],
            "--saved-data: expected one of: tensor, statistic, full",
        ),
        (
            ["--kind", "full", "--path", "/d", "--file-format", "pt"],
            "--file-format: expected one of: npy, bin",
        ),
        (
            ["--kind", "full", "--path", "/d", "--input-output", "x"],
            "--input-output: expected one of: both, input, output",
        ),
        (["--kind", "partial", "--path", "/d", "--statistics", "l2nrm"], "did you mean 'l2norm'?"),
        (["--kind", "partial", "--path", "/d", "--statistics", ","], "--statistics: expected statistics"),
        (["--kind", "full", "--path", "/d", "--dump", "/e"], "--dump has no effect without --check"),
        (["--check", "x.json", "--kind", "full"], "--check excludes --kind"),
        (["--check", "x.json", "--kind", "full", "-o", "y.json"], "--check excludes --kind and --output"),
        (["--check", "/nowhere/x.json"], "no such file"),
    ],
)
def test_mistakes_with_flags(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = dump_config(*argv, capsys=capsys, status=2)
    assert words in err
    assert len(err.splitlines()) == 2, "the mistake and a hint"


def test_check_names_every_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "dump"
    write_tensor(iteration(root), LINEAR, "output.0", np.ones(2))
    write_order(root, LINEAR)
    file = tmp_path / "d.json"
    dump_config("--kind", "condition", "--path", "/d", "--kernel", "MatMul", "-o", file, capsys=capsys)
    order = root / "rank_0/execution_order/ms_execution_order_graph_0.csv"
    for there in (root, order):
        out, err = dump_config("--check", file, "--dump", there, capsys=capsys)
        assert "is correct" in err
    settings = json.loads(file.read_text())
    settings["common_dump_settings"] |= {"path": "d", "kernels": ["MatMull"], "savd_data": "full"}
    file.write_text(json.dumps(settings))
    out, err = dump_config("--check", file, "--dump", root, capsys=capsys, status=2)
    assert "error: path: 'd' is relative" in err
    assert (
        "error: kernels: 'MatMull' matches none of the 1 operators of the dump; did you mean 'MatMul'?" in err
    )
    assert (
        "warning: common_dump_settings.savd_data: unknown key 'savd_data'; did you mean 'saved_data'?" in err
    )
    assert out == ""


def test_warnings_alone_are_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "d.json"
    dump_config("--kind", "full", "--path", "/d", "-o", file, capsys=capsys)
    settings = json.loads(file.read_text())
    settings["common_dump_settings"]["kernels"] = ["Default/Conv-op12"]
    file.write_text(json.dumps(settings))
    _, err = dump_config("--check", file, "--level", "O1", "--device-target", "cpu", capsys=capsys)
    assert err.count("warning:") == 1


def test_inspect_shows_a_dump_of_mindspore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tensor(iteration(tmp_path, 5), LINEAR, "output.0", np.full((2, 3), 4.0))
    assert app.run(["inspect", str(tmp_path), "--find", "fc1"]) == 0
    said = capsys.readouterr().out
    assert "step 5, rank 0: 1 record" in said
    assert "fc1 · mindspore.ops.MatMul" in said
    assert "[2, 3]" in said
