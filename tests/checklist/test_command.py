"""``trueup check`` as a person uses it: exit status, screen, files, mistakes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import openpyxl
import pytest

from tests.checklist.pairs import FOLDER, side
from tests.reporting.screens import lines_of
from tests.warm import COLD
from trueup.checklist import check
from trueup.cli.app import run
from trueup.reporting.checklist import checklist_report

MEGATRON = side("mixtral/megatron.sh")
MINDFORMERS = side("mixtral/mindformers.yaml")


@pytest.fixture
def changed(tmp_path: Path) -> str:
    """The reference with another warmup, another top-k and dropout left at its default."""
    text = Path(MEGATRON).read_text().replace("--lr-warmup-iters 500", "--lr-warmup-iters 200")
    text = text.replace("--moe-router-topk 2", "--moe-router-topk 4").replace("--hidden-dropout 0.0", "")
    (tmp_path / "changed.sh").write_text(text)
    return str(tmp_path / "changed.sh")


def _run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = run(["check", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_agreeing_sides(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = _run(side("qwen3/mindformers.yaml"), side("qwen3/megatron.yaml"), capsys=capsys)
    assert status == 0
    assert "describe the same training" in out
    assert "same at every step" in out


def test_differing_sides_name_value_place_and_whose_default(
    changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = _run(MINDFORMERS, changed, capsys=capsys)
    assert status == 1
    assert "experts_per_token" in out
    assert "mindformers.yaml:17" in out
    assert "0.1 default" in out
    assert "diverge at step" in out


def test_what_leaves_the_verdict_open_is_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text('{"num_layers": 2, "hidden_size": 8, "learning_rate": 0.1}')
    (tmp_path / "b.json").write_text('{"num_layers": 2, "hidden_size": 8}')
    status, out, _ = _run(str(tmp_path / "a.json"), str(tmp_path / "b.json"), capsys=capsys)
    assert status == 2
    assert "1 setting could not be compared" in out
    assert "not set in the reference" in out


def test_one_side_is_held_against_the_recommendations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {
        "num_layers": 2,
        "vocab_size": 32000,
        "adam_eps": 1e-8,
        "clip_grad": 1.0,
        "lr_schedule": "constant",
    }
    (tmp_path / "good.json").write_text(json.dumps(good))
    assert _run(str(tmp_path / "good.json"), capsys=capsys)[0] == 0
    (tmp_path / "bad.json").write_text(json.dumps(good | {"vocab_size": 50257, "adam_eps": 1e-6}))
    status, out, _ = _run(str(tmp_path / "bad.json"), capsys=capsys)
    assert status == 1
    assert "2 recommendations" in out
    assert "multiple of 16" in out


def test_only_and_ignore(changed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        _run(MINDFORMERS, changed, "--only", "weights", "--json", capsys=capsys)[1].count('"section": "moe"')
        == 0
    )
    status, out, _ = _run(
        MINDFORMERS, changed, "--ignore", "structure,moe", "--ignore", "optimizer", capsys=capsys
    )
    assert "experts_per_token" not in out
    assert status == 0, out
    assert "learning rates" not in out  # they are the optimizer's


def test_json_is_one_document(changed: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = _run(MINDFORMERS, changed, "--json", capsys=capsys)
    document = json.loads(out)
    assert document["exit_code"] == status == 1
    assert err == ""
    row = next(row for row in document["rows"] if row["key"] == "warmup_steps")
    assert (row["target"]["value"], row["reference"]["value"]) == (500, 200)
    assert row["sources"]


def test_quiet_says_nothing(changed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(MINDFORMERS, changed, "-q", capsys=capsys) == (1, "", "")


def test_files(changed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    _run(MINDFORMERS, changed, "-o", str(out), "-q", capsys=capsys)
    document = json.loads((out / "checklist.json").read_text())
    page = (out / "checklist.html").read_text()
    for text in (
        "experts_per_token",
        "series target",
        "series reference",
        "diverges at step",
        "Weight decay",
    ):
        assert text in page
    assert "http" not in page.replace("http-equiv", "")
    book = openpyxl.load_workbook(out / "checklist.xlsx")
    assert book.sheetnames == ["checklist", "guide", "schedules", "files"]
    assert book["checklist"].max_row == len(document["rows"]) + 1
    assert len(book["schedules"]._charts) == 2, "learning rate and weight decay"


def test_names_from_a_file_cannot_leave_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Markup in values stays text in the page, formulas stay text in the workbook."""
    for name, value in (("a", "<script>alert(1)</script>"), ("b", "=1+1")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"num_layers": 2, "chat_template": value}))
    _run(str(tmp_path / "a.json"), str(tmp_path / "b.json"), "-o", str(tmp_path / "out"), "-q", capsys=capsys)
    assert "<script>alert" not in (tmp_path / "out" / "checklist.html").read_text()
    sheet = openpyxl.load_workbook(tmp_path / "out" / "checklist.xlsx")["checklist"]
    cells = [cell for row in sheet.iter_rows() for cell in row if cell.value == "=1+1"]
    assert cells
    assert all(cell.data_type != "f" for cell in cells)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "TARGET is missing"),
        (["/no/such/file"], "no such file"),
        ([MEGATRON, "/no/such"], "no such file"),
        ([MEGATRON, MINDFORMERS, "--only", "nonsense"], "neither a section"),
        ([MEGATRON, MINDFORMERS, "--only", "bias_add_dtype"], "--only bias_add_dtype leaves no row: neither"),
        ([MEGATRON, "--prepare"], "-o OUT"),
        ([MEGATRON, "--prepare", "--expand", "-o", "x"], "--prepare and --expand exclude each other"),
        ([str(FOLDER)], "no configuration"),
        ([str(FOLDER / "qwen3")], "several configurations"),
        ([COLD], "binary"),
        ([MEGATRON, "--frobnicate"], "frobnicate"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = _run(*words, capsys=capsys)
    assert status == 2
    assert out == ""
    assert said.lower() in err.lower()
    assert "hint:" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_the_screen_fits_any_width(width: int, changed: str) -> None:
    lines = lines_of(checklist_report(check([MINDFORMERS], [changed]), everything=True), width)
    assert max(map(len, lines)) <= width
    assert any("hidden_dropout" in line or "hid…" in line for line in lines)


def test_prepare_and_expand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = _run(MINDFORMERS, "--prepare", "-o", str(tmp_path / "p"), capsys=capsys)
    assert status == 0
    assert "32 → 2" in out
    assert (tmp_path / "p" / "mindformers.yaml").exists()
    status, out, _ = _run(MEGATRON, "--expand", "-o", str(tmp_path / "e"), "--json", capsys=capsys)
    document = json.loads(out)
    assert status == 0
    assert document["rungs"][0]["name"] == "reduced"
    assert all(Path(path).exists() for path in document["files"])
    assert subprocess.run(["bash", "-n", document["files"][0]], check=False).returncode == 0
