"""The public part: what is expected is said in known words, entries do what they say, judging is strict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from bugzoo.public import board, running  # noqa: E402
from bugzoo.public.entries import BLIND, PUBLIC, Facts, PublicEntry, plants, public_entries  # noqa: E402
from bugzoo.public.judging import HALF, MISLEADING, NOTHING, YES, judge_cause  # noqa: E402
from bugzoo.public.programs import PROGRAMS  # noqa: E402
from bugzoo.scoreboard.answers import from_diagnose  # noqa: E402

from tests.bugzoo.test_entries import KINDS  # noqa: E402
from trueup.types.finding import Stage  # noqa: E402

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]


def test_the_part_is_large_and_of_many_families() -> None:
    own = [entry for entry in public_entries().values() if entry.part == PUBLIC]
    faults = [entry for entry in own if not entry.is_benign]
    assert len(faults) >= 60
    assert len(own) - len(faults) >= 30
    assert len({entry.family for entry in faults}) >= 12
    assert {entry.dtype for entry in faults} == {"fp32", "bf16", "fp16"}
    assert sum(entry.processes == 2 for entry in faults) >= 5
    blind = [entry for entry in public_entries().values() if entry.part == BLIND]
    assert 0.15 < len(blind) / len(public_entries()) < 0.35


@pytest.mark.parametrize("entry", public_entries().values(), ids=public_entries())
def test_what_is_expected_is_said_in_known_words(entry: PublicEntry) -> None:
    assert entry.base in PROGRAMS
    assert entry.link.startswith(("https://github.com/", "unconfirmed: ", "none: "))
    if entry.is_benign:
        return
    assert not entry.link.startswith("none: ")
    assert entry.full, "no facts that tell the cause"
    for stage in (entry.stage, *entry.also_stages):
        Stage(stage)
    kinds = {*entry.kinds, *(kind for facts in (*entry.full, *entry.partial) for kind in facts.kinds)}
    assert kinds <= KINDS


def test_every_plant_and_every_program_is_used() -> None:
    assert set(plants()) == set(public_entries())
    assert set(PROGRAMS) == {entry.base for entry in public_entries().values()}


PROGRAMS_OF_A_PROOF = [
    [name for name in PROGRAMS if name.startswith("llama")],
    [
        name
        for name in PROGRAMS
        if name.startswith(("qwen3", "gemma2", "mistral", "mixtral", "gpt2", "mamba"))
    ],
    [name for name in PROGRAMS if name.startswith(("bert", "vit", "t5", "whisper", "lora", "dpo", "grpo"))],
    [
        name
        for name in PROGRAMS
        if name.startswith(("nano", "cnn", "gnn", "multitask", "unet", "vae", "clip"))
    ],
]


def test_every_program_is_proved_with_all_tests() -> None:
    assert sorted(name for part in PROGRAMS_OF_A_PROOF for name in part) == sorted(PROGRAMS)


ALL = os.environ.get("TRUEUP_TESTS") == "all"


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("programs", PROGRAMS_OF_A_PROOF, ids=lambda names: names[0])
def test_entries_do_what_they_say(programs: list[str]) -> None:
    """A fault first differs in its step, what is benign by rounding at most. By default every fourth entry in
    programs of one process and precision; those of two processes and of less precision plant the same way."""
    programs = [name for name in programs if ALL or "-" not in name or name == "nano-ddp"]
    names = [entry.name for entry in public_entries().values() if entry.base in programs]
    names = names if ALL else names[::4]
    command = [sys.executable, "-m", "bugzoo.public.proof", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["entry"] for one in said] == names
    assert [(one["entry"], one["wrong"]) for one in said if one["wrong"]] == []


# ---- judging

ENTRY = PublicEntry(
    name="eps", base="vit", summary="", link="", group="", stage="forward", sites=["norm"], cause="setting",
    kinds=["constant_argument"], full=[Facts(names=["eps"], values=[0.001, 1e-6])], true_settings=["eps"],
)  # fmt: skip


def document(
    *, kind: str | None = "constant_argument", site: str = "norm", stage: str = "forward", **reason: Any
) -> dict[str, Any]:
    """One finding with one reason in its evidence."""
    headline = {"code": "origin.differs", "numbers": {}, "places": {"module": site}}
    kinds = [] if kind is None else [{"name": kind, "rank": "stated", "sentence_reason": None}]
    finding = {"stage": stage, "module": site, "site": site, "headline": "", "headline_reason": headline}
    finding |= {"kinds": kinds, "evidence_reasons": [reason] if reason else []}
    return {"outcome": "differ", "findings": [finding]}


TOLD = {
    "code": "evidence.argument_differs",
    "numbers": {"target": 0.001, "reference": 1e-6},
    "places": {"name": "eps"},
}


def cause(given: dict[str, Any], entry: PublicEntry = ENTRY) -> str:
    """As judged."""
    return judge_cause(entry, given, from_diagnose(given, seconds=0.0)).cause


def test_the_cause_is_told_by_name_and_numbers() -> None:
    assert cause(document(**TOLD)) == YES
    near = {**TOLD, "numbers": {"target": 0.001, "reference": 1e-5}}
    assert cause(document(**near)) == HALF, "another number"
    other = {**TOLD, "code": "evidence.size_of", "places": {"name": "weight"}}
    assert cause(document(**other)) == HALF, "another name"


def test_what_is_only_measured_tells_no_cause() -> None:
    measured = {**TOLD, "code": "replay.differs"}
    assert cause(document(**measured)) == HALF


def test_a_false_statement_outweighs_the_cause() -> None:
    assert cause(document(kind="dtype_or_rounding", **TOLD)) == MISLEADING
    assert cause(document(site="head", **TOLD)) == MISLEADING
    assert cause(document(stage="optimizer", **TOLD)) == MISLEADING
    false = {**TOLD, "places": {"name": "lr"}}
    assert cause(document(**false)) == MISLEADING, "a setting that does not differ"
    assert cause(document(code="kind.rotary_theta", numbers={}, places={})) == MISLEADING
    assert cause(document(code="kind.size_of_rounding", numbers={}, places={"dtype": "tf32"})) == MISLEADING


def test_a_formula_that_is_expected_is_not_false() -> None:
    entry = replace(ENTRY, partial=[Facts(codes=["kind.norm_eps"])])
    given = document(code="kind.norm_eps", numbers={}, places={})
    assert cause(given) == MISLEADING
    assert cause(given, entry) == HALF


def test_agreement_misleads_and_silence_says_nothing() -> None:
    assert cause({"outcome": "agree", "findings": []}) == MISLEADING
    assert cause({"outcome": "undecided", "findings": []}) == NOTHING


def test_a_kind_that_is_guessed_is_not_a_statement() -> None:
    given = document(kind="dtype_or_rounding")
    given["findings"][0]["kinds"][0]["rank"] = "by_elimination"
    assert cause(given) == HALF


def test_text_is_not_read() -> None:
    said = document(code="given.text", numbers={}, places={"text": "eps 0.001 1e-06"})
    said["findings"][0]["headline"] = "eps differs: 0.001 (target), 1e-06 (reference)"
    assert cause(said) == HALF


# ---- what is kept of a run


def test_clean_runs_are_kept_where_only_judging_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (*running.JUDGES, *running.WORDS):
        assert (ROOT / "src" / "trueup" / name).is_dir()
    code = tmp_path / "src" / "trueup"
    for name in ("capture/session.py", "diagnosing/kinds/wrong_scale.py"):
        (code / name).parent.mkdir(parents=True)
        (code / name).write_text("a = 1\n")
    own = tmp_path / "bugzoo" / "public"
    own.mkdir(parents=True)
    for name in running.PROGRAMS:
        assert (running.HERE / f"{name}.py").exists()
        (own / f"{name}.py").write_text("")
    monkeypatch.setattr(running, "ROOT", tmp_path)
    monkeypatch.setattr(running, "HERE", own)
    before = running.references_folder(), running.documents_folder()
    (code / "diagnosing/kinds/wrong_scale.py").write_text("a = 2\n")
    judged = running.references_folder(), running.documents_folder()
    assert judged[0] == before[0]
    assert judged[1] != before[1]
    (code / "capture/session.py").write_text("a = 2\n")
    assert running.references_folder() != judged[0]


# ---- the results that are kept, and the blind part


def test_the_kept_results_give_the_figures_of_the_documents() -> None:
    raw = json.loads(board.RESULTS.read_text(encoding="utf-8"))
    rows = board.rows_of(raw)
    assert {row.entry.part for row in rows} == {PUBLIC}
    assert len(rows) == len(raw) == len(running.chosen_entries(PUBLIC, None, None))
    for row in rows:
        again = board.PublicRow(entry=row.entry, raw=json.loads(json.dumps(row.raw)))
        assert again.failed or again.entry.is_benign or again.cause == row.cause


def test_the_blind_part_shows_totals_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    raw = json.loads(board.RESULTS.read_text(encoding="utf-8"))[0]
    monkeypatch.setattr(board, "BLIND_COUNTS", tmp_path / "blind.json")
    monkeypatch.setattr(
        running, "run_all", lambda chosen, work, fresh: [raw | {"entry": entry.name} for entry in chosen]
    )
    names = [entry.name for entry in running.chosen_entries(BLIND, None, None)]
    with pytest.raises(SystemExit):
        running.main(BLIND, only=names[:1], base=None, fresh=False, shows_blind=False)
    running.main(BLIND, only=None, base=None, fresh=False, shows_blind=False)
    hidden = capsys.readouterr().out + (tmp_path / "blind.json").read_text()
    assert not any(name in hidden for name in names)
    running.main(BLIND, only=None, base=None, fresh=False, shows_blind=True)
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)
