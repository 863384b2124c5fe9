"""``trueup compare`` and ``trueup export``: options, files and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trueup.cli import app
from trueup.cli.compare_file import chosen_in_compare_file, sides_from_compare_file
from trueup.errors import ConfigError

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("target", "status"), [("reference", 0), ("target", 1)])
def test_the_exit_status_is_the_verdict(
    runs: Path, target: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["compare", str(runs / target), str(runs / "reference"), "-q"]) == status
    assert capsys.readouterr() == ("", "")


def test_reports(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [str(runs / "target"), str(runs / "reference")]
    assert app.run(["compare", *sides, "-o", str(tmp_path / "usual")]) == 1
    assert "gelu" in capsys.readouterr().out
    usual = {path.name for path in (tmp_path / "usual").iterdir()}
    assert usual == {"report.html", "result.json", "result.parquet", "precision.parquet"}
    assert (
        app.run(["compare", *sides, "-o", str(tmp_path / "all"), "--no-html", "--xlsx", "--advisor", "-q"])
        == 1
    )
    suffixes = sorted(path.suffix for path in (tmp_path / "all").iterdir())
    assert suffixes == [".json", ".parquet", ".parquet", ".txt", ".xlsx"]


def test_without_a_folder_the_screen_is_all(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["compare", str(runs / "target"), str(runs / "reference")]) == 1
    assert "gelu" in capsys.readouterr().out


def test_json_is_one_document_verdict_first(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["compare", str(runs / "target"), str(runs / "reference"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert next(iter(document)) == "verdict"
    assert list(document["verdict"])[:2] == ["outcome", "where"]
    assert "gelu" in document["verdict"]["where"]


def test_one_step_of_each(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [str(runs / "reference")] * 2
    assert app.run(["compare", *sides, "--target-step", "0", "--reference-step", "1", "-q"]) == 1
    assert app.run(["compare", *sides, "--target-step", "1", "--reference-step", "1", "-q"]) == 0
    assert app.run(["compare", *sides, "--steps", "7"]) == 2
    assert "no step and rank in common" in capsys.readouterr().err


@pytest.mark.parametrize("keys", [("target_path", "golden_path"), ("npu_path", "bench_path")])
def test_msprobe_s_compare_file(runs: Path, tmp_path: Path, keys: tuple[str, str]) -> None:
    content = {
        keys[0]: str(runs / "target"),
        keys[1]: str(runs / "reference"),
        "stack_path": "",
        "is_print_compare_log": True,
    }
    (tmp_path / "compare.json").write_text(json.dumps(content))
    words = ["-i", str(tmp_path / "compare.json"), "-o", str(tmp_path / "out"), "-f", "pytorch", "-s", "-q"]
    assert app.run(["compare", *words]) == 1
    suffixes = {path.suffix for path in (tmp_path / "out").iterdir()}
    assert suffixes >= {".xlsx", ".txt", ".html"}


ARTICLE_SINGLE = """{
    "npu_path": "./npu_dump/dump.json",
    "bench_path": "./bench_dump/dump.json",
    "stack_path": "./npu_dump/stack.json",
    "is_print_compare_log": true
}"""
ARTICLE_MULTI = """{
    "npu_path": "./npu_dump/step0",
    "bench_path": "./bench_dump/step0",
    "is_print_compare_log": true
}"""


@pytest.mark.parametrize(
    "listing",
    [
        ARTICLE_SINGLE,
        ARTICLE_MULTI,
        ARTICLE_MULTI.replace("step0", "step0/rank0/dump.json"),
        ARTICLE_MULTI.replace("step0", "step0/rank/dump.json"),
        ARTICLE_MULTI.replace("step0", "step0/rank"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_the_dump_article_s_compare_on_traces(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    """Its listing and its command, word for word, where config.json's dump_path holds a trace."""
    monkeypatch.chdir(tmp_path)
    for name, run in (("npu_dump", "target"), ("bench_dump", "reference")):
        (tmp_path / name).symlink_to(runs / run)
    (tmp_path / "compare.json").write_text(listing)
    command = "-f pytorch compare -i ./compare.json -o ./output -s"
    assert app.run([*command.split(), "-q"]) == 1
    names = [path.name for path in (tmp_path / "output").iterdir()]
    assert any(name.startswith("advisor_") and name.endswith(".txt") for name in names)
    assert any(name.startswith("compare_result_") and name.endswith(".xlsx") for name in names)
    result = json.loads((tmp_path / "output/result.json").read_text())
    assert result["verdict"]["step"] == 0


def test_two_steps_that_paths_name_are_a_pair(runs: Path, tmp_path: Path) -> None:
    """As msprobe's compare takes them; without the paths' word, or against an option, it is asked for."""
    listing = {"npu_path": f"{runs}/reference/step0", "bench_path": f"{runs}/reference/step1"}
    (tmp_path / "compare.json").write_text(json.dumps(listing))
    command = ["compare", "-i", str(tmp_path / "compare.json"), "-o", str(tmp_path / "out"), "-q"]
    assert app.run(command) == 1
    result = json.loads((tmp_path / "out/result.json").read_text())
    notes = [one for one in result["notes_reasons"] if one["code"] == "note.paired_by_path"]
    assert [one["numbers"] for one in notes] == [{"target": 0, "reference": 1}]
    assert app.run([*command, "--steps", "0"]) == 2
    assert app.run(["compare", listing["npu_path"], f"{runs}/reference/step0/rank0", "-q"]) == 0


def test_a_step_or_rank_that_a_trace_lacks(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("step7", "step0/rank3/dump.json"):
        assert app.run(["inspect", str(runs / "target" / part)]) == 2
        assert "has no step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"npu_pth": "a", "bench_path": "b"}, "unknown key 'npu_pth'; did you mean 'npu_path'"),
        ({"npu_path": "a"}, r"expected one of: golden_path, bench_path \(got neither\)"),
        (
            {"npu_path": "a", "target_path": "a", "bench_path": "b"},
            r"expected one of: .* \(got target_path and npu_path\)",
        ),
        ({"npu_path": 3, "bench_path": "b"}, "npu_path: expected"),
        ({"npu_path": "", "bench_path": "b"}, "npu_path: expected"),
        ([], "expected a JSON object"),
    ],
)
def test_a_wrong_compare_file(tmp_path: Path, content: object, message: str) -> None:
    (tmp_path / "compare.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=message):
        sides_from_compare_file(tmp_path / "compare.json")


def test_a_folder_that_cannot_be_written(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for output in ("file", "file/out"):
        words = [str(runs / "target"), str(runs / "reference"), "-o", str(tmp_path / output)]
        assert app.run(["compare", *words]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: --output: expected a ")
        assert str(tmp_path / "file") in said
        assert "Traceback" not in said


def test_export_writes_a_dump_that_compares_equal_to_its_source(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = tmp_path / "dump"
    assert app.run(["export", str(runs / "reference"), str(dump), "--format", "msprobe"]) == 0
    assert f"wrote {dump}" in capsys.readouterr().err
    assert sorted(path.name for path in dump.iterdir()) == ["step0", "step1"]
    assert app.run(["inspect", str(dump)]) == 0
    assert app.run(["export", str(runs / "reference"), str(dump)]) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "chosen"),
    [
        ({}, {}),
        ({"rank_id": [], "step_id": []}, {}),
        ({"rank_id": [1], "step_id": [0, 2]}, {"ranks": {1}, "steps": {0, 2}}),
    ],
)
def test_ranks_and_steps_of_compare_json(
    more: dict[str, list[int]], chosen: dict[str, set[int]], tmp_path: Path
) -> None:
    file = tmp_path / "compare.json"
    file.write_text(json.dumps({"npu_path": "a", "bench_path": "b", **more}))
    assert chosen_in_compare_file(file) == chosen
    for wrong in (1, ["0"], [True], [-1]):
        file.write_text(json.dumps({"npu_path": "a", "bench_path": "b", "rank_id": wrong}))
        with pytest.raises(ConfigError, match="rank_id"):
            chosen_in_compare_file(file)
