"""Kept runs judged again: what counts as a changed answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bugzoo.bases import bases
from bugzoo.entries import entries
from bugzoo.scoreboard import facts, frozen
from bugzoo.scoreboard.board import Row
from bugzoo.scoreboard.keeping import SAMPLE, Kept, in_order, kept, sample
from bugzoo.scoreboard.runs import ACROSS, COMPLETE, MODES, PASSIVE, REPLAY, SKETCHES, VALUES, Runs, What

from tests.goldens.cases import unpack


def diagnosis(**finding: Any) -> dict[str, Any]:
    given = {
        "stage": "reduction",
        "module": None,
        "site": "emb.weight · gradient clipped and 18 more",
        "phase": "param_grad",
        "step": 0,
        "rank": 1,
        "kinds": [{"name": "wrong_scale"}, {"name": "wrong_sign"}],
        "axis": "tp",
        "ranks": [],
    }
    stages = [{"stage": "data", "status": "passed"}, {"stage": "reduction", "status": "failed"}]
    return {"outcome": "differ", "exit_code": 1, "findings": [given | finding], "stages": stages}


def test_facts_of_a_diagnosis() -> None:
    assert facts.of_diagnose(diagnosis()) == {
        "outcome": "differ",
        "exit": 1,
        "findings": [
            ["reduction", "param_grad", 0, 1, "emb.weight", ["wrong_scale", "wrong_sign"], "tp", []]
        ],
        "sites": ["emb.weight · gradient clipped and 18 more"],
        "stages": {"reduction": "failed"},
    }
    assert facts.of_diagnose(diagnosis(kinds=[{"code": "wrong_scale"}]))["findings"][0][5] == ["wrong_scale"]


def test_a_place_worded_otherwise_is_no_changed_answer() -> None:
    then = {"diagnose": facts.of_diagnose(diagnosis())}
    now = {"diagnose": facts.of_diagnose(diagnosis(site="emb.weight · clipped gradient"))}
    lines, texts = frozen.changes("x", now, then)
    assert (len(lines), len(texts)) == (0, 1)
    for other in ({"stage": "loss"}, {"site": "head.weight · gradient"}, {"axis": None}, {"kinds": []}):
        lines, _ = frozen.changes("x", {"diagnose": facts.of_diagnose(diagnosis(**other))}, then)
        assert len(lines) == 1, other
    assert frozen.changes("x", {}, then)[0]
    assert frozen.changes("x", then, {})[0]


def test_rows_count_in_any_order_and_to_five_digits(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    row = dict.fromkeys(facts.ROW, "a") | {"score": 1.23456, "tolerance": None}

    def digest(*rows: dict[str, Any]) -> str:
        pl.DataFrame(rows, schema_overrides={"tolerance": pl.Float64}).write_parquet(tmp_path / "r.parquet")
        return facts.rows_digest(tmp_path / "r.parquet")

    other = row | {"status": "equal"}
    assert digest(row, other) == digest(other, row | {"score": 1.2345600001})
    assert digest(row, other) != digest(other, row | {"score": 1.2347})
    assert digest(row, other) != digest(row, row)


def test_answers_are_written_and_read_back(tmp_path: Path) -> None:
    answers = {"x": {"diagnose": facts.of_diagnose(diagnosis()), "compare": {"failed": 2}}}
    frozen.write(answers, tmp_path / "frozen.json")
    assert frozen.read(tmp_path / "frozen.json") == answers
    assert frozen.read(tmp_path / "none.json") == {}


def test_the_sample_shows_every_program_stage_and_kind() -> None:
    names = sample()
    assert len(names) == SAMPLE
    chosen, everything = [entries()[name] for name in names], entries().values()
    assert {entry.base for entry in chosen} == {entry.base for entry in everything}
    for of in ("stage", "part", "precision"):
        assert {getattr(e, of) for e in chosen} == {getattr(e, of) for e in everything}
    assert {k for e in chosen for k in e.kinds[:1]} == {k for e in everything for k in e.kinds[:1]}
    assert {entry.name for entry in in_order(everything)[:SAMPLE]} == names


def test_only_complete_entries_and_references_are_taken(tmp_path: Path) -> None:
    base = bases()["gpt"]
    chosen = [entry for entry in entries().values() if entry.base == base.name][:2]
    for entry in chosen:
        (tmp_path / "entries" / entry.name / "replay").mkdir(parents=True)
    (tmp_path / "entries" / chosen[0].name / "kept.json").touch()
    (found,) = kept(tmp_path, chosen)
    assert found.entry is chosen[0]
    assert found.replays == {"replay": found.folder / "replay"}
    assert found.alone is None

    (tmp_path / "references" / base.name / "values").mkdir(parents=True)
    (tmp_path / "references" / base.name / COMPLETE).touch()
    reference = Runs(tmp_path, What(), is_kept=True).reference(base.name)  # starts no program
    assert reference.values.is_dir()


def test_what_is_printed_is_read_and_an_error_is_an_answer(tmp_path: Path) -> None:
    found = frozen.compare(tmp_path / "none", tmp_path / "none", {}, "compare")
    assert found == {"failed": 2}


def test_kept_runs_are_judged_in_every_way_the_commands_are_asked(tmp_path: Path) -> None:
    inputs = unpack(tmp_path / "inputs")
    entry = next(iter(entries().values()))
    (tmp_path / "entry").mkdir()
    for name, source in (
        ("values", "norm-eps"),
        ("sketches", "norm-eps.calls"),
        ("replay", "norm-eps.replay"),
    ):
        (tmp_path / "entry" / name).symlink_to(inputs / source)
    (tmp_path / "clean").mkdir()
    for name, source in (("values", "reference"), ("sketches", "reference.calls"), ("alone", "reference")):
        (tmp_path / "clean" / name).symlink_to(inputs / source)
    one = Kept(entry=entry, folder=tmp_path / "entry", reference=tmp_path / "clean")
    name, answers = frozen.judge_kept(one, tmp_path / "documents")
    assert name == entry.name
    before = {"entry": name, "seconds": 9.5, "answers": {VALUES: {"seconds": 1.5}}}
    row = Row(entry=entry, raw=frozen.on_board(before, tmp_path / "documents"))
    on_board = row.answer(VALUES), row.answer(REPLAY)
    assert [(one and one.outcome, one and one.seconds) for one in on_board] == [
        ("differ", 1.5),
        ("differ", None),
    ]
    assert on_board[1] is not None
    assert on_board[1].named[0].site == "layers.1.ln1"
    assert row.raw["seconds"] == 9.5
    other = {"entry": "another"}
    assert frozen.on_board(other, tmp_path / "documents") is other
    assert tuple(answers) == MODES
    assert answers[ACROSS] == answers[PASSIVE]
    assert answers[VALUES]["rows"] != answers[SKETCHES]["rows"]
    for mode in (PASSIVE, REPLAY):
        assert answers[mode]["findings"][0][:5] == ["forward", "forward", 0, 0, "layers.1.ln1"]
    assert frozen.changes(name, answers, answers) == ([], [])
