"""A dozen entries through the public commands as ``make zoo`` runs them; and the scoring of answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from bugzoo.bases import bases
from bugzoo.entries import entries
from bugzoo.scoreboard import commands, msprobe
from bugzoo.scoreboard.answers import FAILED, NOT_RUN, Answer, Named, from_compare, from_diagnose
from bugzoo.scoreboard.board import board
from bugzoo.scoreboard.commands import Program
from bugzoo.scoreboard.curves import compare_losses
from bugzoo.scoreboard.judging import Judged, judge

pytestmark = pytest.mark.torch
BASE = "gpt"
QUICK = ["labels-shifted-twice", "rope-bf16", "norm-eps", "attention-scale", "causal-leak", "qkv-layout"]
QUICK += ["gelu-tanh", "gradient-scale", "zero-grad-missing", "weight-decay"]
CONTROLS = ["chunk-for-split", "fused-attention"]
REPLAYED = ["causal-leak", "fused-attention"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clean program's trace."""
    out = tmp_path_factory.mktemp("clean") / "run"
    commands.capture(Program(base=bases()[BASE]), out, values=True)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *CONTROLS])
def test_the_commands_are_right(name: str, reference: Path, tmp_path: Path) -> None:
    entry = entries()[name]
    program = Program(base=bases()[BASE], entry=entry)
    commands.capture(program, tmp_path / "run", values=True)
    answer = commands.compare(tmp_path / "run", reference)
    judged = judge(entry, answer)
    if entry.is_benign:
        assert judged.false_alarm is False, answer
    else:
        assert (judged.stage, judged.site) == (True, True), answer
    if name in REPLAYED:
        replayed = commands.diagnose(tmp_path / "run", reference, tmp_path / "diagnosis", program)
        judged = judge(entry, replayed)
        right = (
            Judged(false_alarm=False) if entry.is_benign else Judged(stage=True, site=True, among_three=True)
        )
        assert (judged.stage, judged.site, judged.false_alarm) == (
            right.stage,
            right.site,
            right.false_alarm,
        ), replayed


def test_a_command_that_is_missing_or_fails_is_told_from_a_wrong_answer(tmp_path: Path) -> None:
    missing = commands._asked(["nonsense"], from_diagnose)
    assert missing.state == NOT_RUN
    failed = commands.compare(tmp_path / "none", tmp_path / "none")
    assert failed.state == FAILED
    assert "none" in failed.note
    assert judge(entries()["norm-eps"], failed) == Judged()
    with pytest.raises(commands.CommandFailed, match="ended with 3"):
        commands.run([commands.TRUEUP[0], "-c", "raise SystemExit(3)"])


def answer(*named: Named, outcome: str = "differ") -> Answer:
    return Answer(outcome=outcome, named=list(named), seconds=1.0)


def test_judging_a_fault() -> None:
    entry = entries()["norm-eps"]
    right = Named(stage="forward", site="layers.2.ln1", kinds=["constant_argument"])
    wrong = Named(stage="backward", site="layers.2", kinds=["wrong_scale", "constant_argument"])
    assert judge(entry, answer(right, wrong)) == Judged(stage=True, site=True, among_three=True, kind=True)
    assert judge(entry, answer(wrong, right)) == Judged(stage=False, site=False, among_three=True, kind=False)
    late = judge(entry, answer(wrong, wrong, wrong, right))
    assert late.among_three is False
    for silent in (answer(), answer(right, outcome="agree")):
        assert judge(entry, silent) == Judged(stage=False, site=False, among_three=False, kind=False)


def test_where_no_module_owns_a_fault_its_stage_is_its_place() -> None:
    entry = entries()["weight-decay"]
    anywhere = Named(stage="optimizer", site="layers.0.mlp.up.weight")
    assert judge(entry, answer(anywhere)).site is True
    assert judge(entry, answer(Named(stage="backward", site="layers.0.mlp.up.weight"))).site is False


def test_a_control_alarms_only_where_runs_are_said_to_differ() -> None:
    entry = entries()["repeat"]
    for outcome, alarm in (("agree", False), ("undecided", False), ("differ", True)):
        assert judge(entry, answer(outcome=outcome)).false_alarm is alarm


def document(**verdict: Any) -> dict[str, Any]:
    given = {
        "outcome": "differ",
        "where": "x · forward · output.0",
        "owner": "x",
        "step": 0,
        "phase": "forward",
    }
    return {"verdict": {**given, "headline": "", **verdict}, "scalars": []}


def test_reading_a_comparison() -> None:
    assert from_compare(document(), seconds=1.0).named[0].stage == "forward"
    local = document(phase="param_grad", where="x.weight · param_grad · local", owner=None)
    assert from_compare(local, seconds=1.0).named[0] == Named(stage="backward", site="x.weight")
    clipped = document(phase="param_grad", where="x.weight · param_grad · clipped")
    assert from_compare(clipped, seconds=1.0).named[0].stage == "reduction"
    batch = document() | {"scalars": [{"name": "batch_digest", "step": 0, "beyond": True}]}
    assert from_compare(batch, seconds=1.0).named[0].stage == "data"
    assert from_compare(document(outcome="agree"), seconds=1.0).named == []


def test_the_board_says_what_did_not_run_and_counts_what_did() -> None:
    right = answer(Named(stage="forward", site="layers.2.ln1", kinds=["constant_argument"]))
    raw = [
        {"entry": "norm-eps", "answers": {"compare": right.to_json()}, "noise": "measured"},
        {"entry": "gelu-tanh", "answers": {"compare": right.to_json()}, "noise": "measured"},
        {"entry": "repeat", "answers": {"compare": answer().to_json()}, "noise": "measured"},
    ]
    page = board(raw)
    assert "diagnose with replay: no answer to 3 of 3 entries" in page
    assert "| all (2) | 100% | 50% (bar 80%) |" in page
    assert "False alarms: 1 of 1 controls" in page


def test_two_curves() -> None:
    same = compare_losses(["1.0", "2.0"], ["1.0", "2.0"])
    assert (same.first_equal, same.is_seen) == (True, False)
    apart = compare_losses(["1.0", "2.1"], ["1.0", "2.0"])
    assert (apart.first_equal, apart.is_seen) == (True, True)


def test_a_row_of_msprobe_names_its_module() -> None:
    row = "Module.module.layers.0.ln1.LayerNorm.forward.0.input.0"
    assert msprobe._module_of(row) == "layers.0.ln1"
