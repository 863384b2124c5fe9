"""``trueup curves`` as a person uses it: logs in, verdict, reports and exit status out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import openpyxl
import polars as pl
import pytest

from tests.curves import logs
from tests.curves.simulating import Truth, simulate
from trueup.cli.app import function_of, run
from trueup.cli.words import rewritten
from trueup.curves.comparison import CurveComparison
from trueup.curves.following import follow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of a good target, of one that parts, and of a reference with a repeat."""
    made = tmp_path_factory.mktemp("logs")
    target, references = simulate(Truth(num_steps=1500, sigma=0.004, spike_rate=0.0), 2)
    parted = pl.Series(target.frame["loss"].to_numpy() + 0.003 * np.maximum(np.arange(1500) - 900, 0))
    (made / "good.log").write_text(logs.mindformers(target))
    (made / "bad.log").write_text(
        logs.mindformers(replace(target, frame=target.frame.with_columns(loss=parted)))
    )
    for number, curve in enumerate(references, 1):
        (made / f"gpu{number}.log").write_text(logs.megatron(curve))
    return made


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


AGAINST = ["--reference", "gpu1.log", "gpu2.log"]


def test_a_good_run_is_accepted_once_a_person_vouches(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["curves", "good.log", *AGAINST]) == 2
    said = capsys.readouterr().out
    assert "not proved" in said
    assert "traces prove it" in said
    assert run(["curves", "good.log", *AGAINST, "--assume", "all"]) == 0
    assert "The curves agree" in capsys.readouterr().out


def test_a_run_that_parts_is_told_where_and_what_to_do(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["curves", "bad.log", *AGAINST, "--command", "bash pretrain.sh"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"The loss diverges at step (8[5-9]|9[0-4])\d", said)
    assert "--skip-batch" in said
    assert "bash pretrain.sh" in " ".join(said.split())


def test_every_report_is_written(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["curves", "bad.log", *AGAINST, "-o", str(tmp_path), "-q"]) == 1
    assert capsys.readouterr().out == ""
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"curves.json", "curves.html", "curves.png", "acceptance.md", "acceptance.xlsx"}
    document = json.loads((tmp_path / "curves.json").read_text())
    assert document["exit_code"] == 1
    assert document["comparisons"][0]["judgement"]["case"] == "loss_diffusion"
    png = (tmp_path / "curves.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") > 1000
    page = (tmp_path / "curves.html").read_text()
    assert 'http-equiv="Content-Security-Policy"' in page
    assert page.count('"key": "difference"') == 1
    text = (tmp_path / "acceptance.md").read_text()
    assert "**Not accepted.**" in text
    assert "| Mean error of the loss |" in text
    book = openpyxl.load_workbook(tmp_path / "acceptance.xlsx")
    assert book.sheetnames == ["acceptance", "conditions", "statistics", "curves"]
    assert book["curves"].max_row == 1501
    assert book["acceptance"]["A2"].value == "Not accepted"


def test_names_in_the_page_are_text(here: Path, tmp_path: Path) -> None:
    name = "<script>alert(1)<"
    (here / name).write_text((here / "good.log").read_text())
    assert run(["curves", name, *AGAINST, "-o", str(tmp_path), "--report", "html", "-q"]) == 2
    assert "<script>alert" not in (tmp_path / "curves.html").read_text()


def test_several_targets_are_listed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["curves", "good.log", "bad.log", *AGAINST, "--assume", "all", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [one["outcome"] for one in document["comparisons"]] == ["agree", "differ"]
    assert run(["curves", "good.log", "bad.log", *AGAINST]) == 1
    assert "bad.log" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "TARGET is missing"),
        (["good.log"], "--reference is missing"),
        (["good.log", "--reference", "none.log"], "no such log: none.log; . holds"),
        (
            ["good.log", *AGAINST, "--report", "pdf"],
            "--report: expected all, or some of: json, html, png, xlsx, md (got 'pdf')",
        ),
        (["good.log", *AGAINST, "--steps", "5"], "--steps: expected FIRST-LAST"),
        (["good.log", *AGAINST, "--steps", "9-5"], "--steps: expected FIRST-LAST"),
        (["good.log", *AGAINST, "--assume", "luck"], "--assume: expected one of: weights, settings"),
        (["good.log", *AGAINST, "--condition", "dataset"], "--condition: expected NAME=VALUE"),
        (["good.log", *AGAINST, "--column", "loss"], "--column 'loss'"),
        (["good.log", *AGAINST, "--tokenizer", "nowhere"], "--tokenizer nowhere: no such folder"),
        (["good.log", *AGAINST, "--offset", "many"], "--offset: expected an integer (got 'many')"),
        (
            ["good.log", *AGAINST, "--target-trace", "nowhere", "--reference-trace", "no"],
            "no such trace: nowhere",
        ),
        (["good.log", *AGAINST, "--reference-trace", "no"], "add --target-trace DIR"),
        (["good.log", "--reference", "gpu1.log", "gpu1.log"], "is given twice"),
        (["good.log", *AGAINST, "--offset", "99999"], "no step in common"),
        (["good.log", "bad.log", *AGAINST, "--follow"], "--follow: expected one target"),
    ],
)
def test_a_mistake_in_any_argument_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(["curves", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_words_after_reference_are_references() -> None:
    assert rewritten(["curves", "t", "-r", "a", "b", "--json"], function_of("curves")) == [
        "curves", "t", "-r", "a", "-r", "b", "--json",
    ]  # fmt: skip


def test_a_log_that_grows_is_judged_anew(here: Path, tmp_path: Path) -> None:
    whole = (here / "bad.log").read_text()
    lines = whole.splitlines(keepends=True)
    log = tmp_path / "live.log"
    log.write_text("starting\n")
    parts = [1400, 2000, len(lines)]
    waits: list[float] = []

    def grow(seconds: float) -> None:
        waits.append(seconds)
        if parts:
            text = "".join(lines[: parts.pop(0)])
            log.write_text(text[:-20] if parts else text)  # the last line is half written

    updates = follow(str(log), ["gpu1.log", "gpu2.log"], every=0.5, wait=grow)
    said = [next(updates) for _ in range(4)]
    assert isinstance(said[0], str)
    assert said[0].startswith("waiting:")
    steps = [int(one.paired.steps[-1]) for one in said[1:] if isinstance(one, CurveComparison)]
    assert steps == [700, 1000, 1500]
    last = said[-1]
    assert isinstance(last, CurveComparison)
    assert last.judgement.case == "loss_diffusion"
    assert set(waits) == {0.5}
