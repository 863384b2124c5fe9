"""Each sentence of a sign-off: said where it is true, and not of its near miss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checklist import guided
from tests.curves.test_each_reason import STILL
from tests.diagnosing.made_steps import codes_of, facts_of, passed
from trueup.accepting.downstream import downstream_items
from trueup.accepting.first_steps import step_items
from trueup.accepting.item import Item, ProcedurePart, State
from trueup.accepting.long_run import _still_loss, _still_norm, no_update_items
from trueup.accepting.settings import _few, checklist_items
from trueup.accepting.signoff import SignOff
from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.stages.config import configurations
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.types.codes import AcceptCode as Code
from trueup.types.codes import GivenCode
from trueup.types.finding import Stage
from trueup.types.reason import reason
from trueup.types.status import Outcome

TEXT = reason(GivenCode.TEXT, text="")


def item(state: State, *, binding: bool) -> Item:
    return Item(
        key="one",
        part=ProcedurePart.LONG_RUN,
        title=TEXT,
        state=state,
        binding=binding,
        measured=TEXT,
        threshold=TEXT,
        origin=TEXT,
    )


@pytest.mark.parametrize(
    ("state", "binding", "code"),
    [
        (State.FAILED, False, Code.FAILED_UNPROVED),
        (State.FAILED, True, Code.REFUSED),
        (State.PASSED, True, Code.ACCEPTED),
    ],
)
def test_what_decides(state: State, binding: bool, code: Code) -> None:
    items = (item(state, binding=binding), item(State.PASSED, binding=True))
    assert SignOff(items=items, inputs=()).headline.code is code


@pytest.mark.parametrize("steps", [(3, 9), ()])
def test_steps_that_stand_out_while_no_weight_is_updated(steps: tuple[int, ...]) -> None:
    loss, norm = no_update_items(None)
    found = facts_of(_still_loss(loss, replace(STILL, outlying_steps=steps), ()).evidence, Code.OUTLYING)
    assert found == ({"steps": ("3", "9")} if steps else None)
    known = replace(STILL, mean_norm_diff=0.1, mean_norm_rel_diff=0.01, max_norm_diff=0.2)
    measured = [_still_norm(norm, one, ()).measured.code for one in (STILL, known)]
    assert measured == [Code.NO_NORM, Code.FROZEN_NORM]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_late_gap_is_left_to_downstream_tasks(wanted: bool) -> None:
    (one,) = downstream_items(None, wanted=wanted)
    assert (Code.LATE_GAP in codes_of(one.evidence)) is wanted


@pytest.mark.parametrize(("stage", "code"), [(Stage.FORWARD, Code.REPLAY), (Stage.LOSS, Code.CAPTURE_TWO)])
def test_how_an_open_stage_could_be_shown(stage: Stage, code: Code) -> None:
    diagnosis = Diagnosis(
        target="t",
        reference="r",
        outcome=Outcome.UNDECIDED,
        headline=TEXT,
        confidence=None,
        stages=(passed(stage, StageStatus.UNDECIDED),),
        findings=(),
        seconds={},
    )
    key = "next_loss" if stage is Stage.LOSS else stage.value
    shown = {one.key: one.how for one in step_items(diagnosis)}
    assert shown[key] is not None
    assert shown[key].code is code


@pytest.mark.parametrize("num", [7, 8, 9, 12])
def test_evidence_that_is_left_out_is_counted(num: int) -> None:
    every = [reason(GivenCode.TEXT, text=str(at)) for at in range(num)]
    facts = facts_of(_few(every), Code.AND_MORE)
    assert facts == ({"num": num - 8} if num > 8 else None)
    assert len([one for one in _few(every) if one.code is GivenCode.TEXT]) == min(num, 8)


SETTINGS = {
    "num_layers": 2,
    "hidden_size": 64,
    "learning_rate": 1e-3,
    "lr_schedule": "cosine",
    "train_steps": 100,
    "decay_steps": 100,
}


def sections(folder: Path, target: dict[str, Any], reference: dict[str, Any]) -> list[Item]:
    for name, values in (("t", target), ("r", reference)):
        (folder / f"{name}.json").write_text(json.dumps(values))
    given = str(folder / "t.json"), str(folder / "r.json")
    return checklist_items(configurations(folder, folder, given))


@pytest.mark.parametrize(
    ("changed", "code", "facts"),
    [
        ({"learning_rate": 2e-3}, Code.SCHEDULES_DIFFER, {"step": 0}),
        ({"min_lr": 1e-4}, Code.SCHEDULES_DIFFER, {"step": 1}),
        ({}, Code.SCHEDULES_EQUAL, {"num": 100}),
    ],
)
def test_schedules(tmp_path: Path, changed: dict[str, Any], code: Code, facts: dict[str, Any]) -> None:
    items = sections(tmp_path, {**SETTINGS, **changed}, SETTINGS)
    found = next(one for one in items if one.key == "checklist:schedules").measured
    assert (found.code, found.facts) == (code, facts)


@pytest.mark.parametrize(("reference", "seen"), [("megatron", True), ("hf", False)])
def test_a_setting_that_follows_from_others(tmp_path: Path, reference: str, seen: bool) -> None:
    """Of two frameworks that do not let it be set, by the settings that it follows from."""
    given = tuple(
        guided.write(tmp_path / side, base) for side, base in (("t", "mindformers"), ("r", reference))
    )
    evidence = [
        one for item in checklist_items(configurations(tmp_path, tmp_path, given)) for one in item.evidence
    ]
    facts = facts_of(evidence, Code.SUSPECT)
    assert facts == ({"key": "embedding_dtype"} if seen else None)


@pytest.mark.parametrize(("left_out", "open_"), [("hidden_size", True), (None, False)])
def test_a_setting_that_one_side_does_not_state(tmp_path: Path, left_out: str | None, open_: bool) -> None:
    target = {key: value for key, value in SETTINGS.items() if key != left_out}
    evidence = [one for item in sections(tmp_path, target, SETTINGS) for one in item.evidence]
    facts = facts_of(evidence, Code.NOT_COMPARED)
    assert facts == ({"key": "hidden_size"} if open_ else None)
