"""A diagnosis on the screen and as a page: what it says, that it is whole, that names cannot break it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.reporting.screens import lines_of
from trueup.diagnosing.diagnosis import Diagnosis, StepLoss
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.reporting.diagnosis import diagnosis_report
from trueup.reporting.diagnosis.drawing import WIDTH, model_drawing
from trueup.reporting.diagnosis.errors import error_drawing
from trueup.reporting.diagnosis.model import block_of
from trueup.reporting.render import write
from trueup.types.codes import EvidenceCode, NoteCode, StagesCode
from trueup.types.finding import Basis, EvidenceRank, Finding, Kind, KindClass, KindCode, Origin, Stage
from trueup.types.reason import given as text
from trueup.types.reason import reason
from trueup.types.status import Outcome

S = StageStatus
STATUSES = {
    Stage.CONFIG: S.PASSED,
    Stage.DATA: S.PASSED,
    Stage.WEIGHTS: S.PASSED,
    Stage.FORWARD: S.FAILED,
    Stage.BACKWARD: S.CONSEQUENCE,
    Stage.REDUCTION: S.CONSEQUENCE,
    Stage.OPTIMIZER: S.UNDECIDED,
    Stage.LOSS: S.CONSEQUENCE,
    Stage.LONG_RUN: S.SKIPPED,
}


def finding(stage: Stage, module: str, phase: str, **given: Any) -> Finding:
    """One finding, with everything a finding may have."""
    kind = Kind(
        name=KindCode.WRONG_SCALE,
        family=KindClass.MODEL,
        rank=EvidenceRank.EVERY_ELEMENT,
        sentence=text("2 times the reference"),
        causes=(text("a cause"),),
    )
    origin = Origin(
        stage=stage, module=module, site=f"{module}, output.0", phase=phase, slot="output.0", step=0, rank=0,
        microbatch=None, order=1, score=2.0, rel_l2=1e-2, tolerance=1e-6, basis=Basis.REPLAY, target_record=1,
        reference_record=1, reference_source="other.py:7 forward | y = f(x)",
    )  # fmt: skip
    usual: dict[str, Any] = {
        "stage": stage,
        "headline": text(f"{module} is wrong in the {stage.value}."),
        "module": module,
        "site": f"{module}, output.0",
        "phase": phase,
        "step": 0,
        "rank": 0,
        "source": "model.py:61 forward | x = f(x)",
        "kinds": (kind,),
        "basis": Basis.REPLAY,
        "evidence": (text("off by 1.0 of its norm"),),
        "counter_evidence": (text("all preceding records are bit-identical"),),
        "causes": (text("a factor left out"),),
        "next": text("trueup compare a b -o out"),
        "next_note": text("to see more"),
        "origin": origin,
    }
    return Finding(**(usual | given))


def path_of(modules: Sequence[str], error: Any) -> tuple[dict[str, Any], ...]:
    """Module outputs forward and backward; ``error``: of (phase, place in its order)."""
    return tuple(
        {
            "phase": phase,
            "module": module,
            "type": "Part",
            "rel_l2": error(phase, at),
            "tolerance": 1e-6,
            "order": at,
        }
        for phase, order in (("forward", modules), ("backward", modules[::-1]))
        for at, module in enumerate(order)
    )


MODULES = ["emb", *(f"layers.{i}{part}" for i in range(4) for part in (".ln", ".attn", "")), "head", ""]


@pytest.fixture
def diagnosis() -> Diagnosis:
    """Four layers, wrong from the second on."""
    stages = tuple(
        StageOutcome(
            stage=s,
            title=reason(StagesCode.TITLE, key=s.value),
            status=w,
            conclusion=text(f"{s.value} said"),
            evidence=(text("seen"),),
        )
        for s, w in STATUSES.items()
    )
    return Diagnosis(
        target="runs/target",
        reference="runs/reference",
        outcome=Outcome.DIFFER,
        confidence=Basis.REPLAY.confidence,
        headline=text("layers.1.attn is wrong in the forward. 1 more finding."),
        stages=stages,
        findings=(
            finding(Stage.FORWARD, "layers.1.attn", "forward"),
            finding(Stage.OPTIMIZER, "emb.weight", "optimizer"),
        ),
        path=path_of(MODULES, lambda phase, at: 1e-2 if phase == "backward" or at >= 5 else 0.0),
        losses=(StepLoss(step=0, target=5.5, reference=5.25),),
        notes=(text("a note"),),
        runs={"compare": "out/compare"},
        tolerance="dtype bound",
        command="python train.py",
        seconds={"compare": 1.0},
    )


def page_of(diagnosis: Diagnosis, folder: Path) -> str:
    """The page."""
    return write(diagnosis_report(diagnosis), folder / "diagnosis.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_screen_fits(diagnosis: Diagnosis, width: int) -> None:
    assert max(map(len, lines_of(diagnosis_report(diagnosis), width))) <= width


def test_the_screen_says_what_where_why_and_what_next(diagnosis: Diagnosis) -> None:
    lines = lines_of(diagnosis_report(diagnosis), 100)
    text = "\n".join(lines)
    for words in (
        "layers.1.attn is wrong in the forward",
        "model.py:61 forward",
        "other.py:7",
        "wrong scale",
        "certain",
        "off by 1.0",
        "bit-identical",
        "a factor left out",
        "emb.weight is wrong",
        "trueup compare a b -o out",
    ):
        assert words in text, words
    assert len(lines) <= 40


def test_the_page_is_whole_and_loads_nothing(diagnosis: Diagnosis, tmp_path: Path) -> None:
    page = page_of(diagnosis, tmp_path)
    for words in ("From symptom to origin", "Stages", "Likely causes", "off by 1.0 of its norm"):
        assert words in page, words
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("<svg") == 3


def test_no_error_is_drawn_where_there_is_none(diagnosis: Diagnosis, tmp_path: Path) -> None:
    path = path_of(MODULES, lambda phase, _: 0.0 if phase == "forward" else 1e-3)
    assert page_of(replace(diagnosis, path=path), tmp_path).count("<svg") == 2


def test_names_are_escaped(diagnosis: Diagnosis, tmp_path: Path) -> None:
    script = "<script>alert(1)</script>"
    path = tuple({**p, "module": p["module"].replace("emb", '<b onload="x">')} for p in diagnosis.path)
    bad = replace(
        diagnosis,
        path=path,
        headline=text(script),
        findings=(replace(diagnosis.findings[0], headline=text(script)),),
    )
    page = page_of(bad, tmp_path)
    assert "<script>alert" not in page
    assert "<b onload" not in page


@pytest.mark.parametrize(
    "stage", ["forward", "backward", "data", "weights", "reduction", "optimizer", "resume"]
)
def test_drawings_are_well_formed_wherever_the_error_is(diagnosis: Diagnosis, stage: str) -> None:
    phase = "forward" if stage in ("forward", "data", "weights") else "backward"
    first = finding(Stage(stage), "layers.1.attn", phase)
    diagnosis = replace(diagnosis, findings=(first, *diagnosis.findings))
    for drawing in (
        model_drawing(diagnosis),
        error_drawing(diagnosis, "forward"),
        error_drawing(diagnosis, "backward"),
    ):
        assert ElementTree.fromstring(drawing).tag == "svg"
    numbers = [
        e.text for e in ElementTree.fromstring(model_drawing(diagnosis)).iterfind(".//g[@class='flag']/text")
    ]
    assert "1" in numbers


@pytest.mark.parametrize("layer", range(4))
@pytest.mark.parametrize("length", [4, 90])
def test_the_label_of_the_marker_stays_inside_the_drawing(
    diagnosis: Diagnosis, layer: int, length: int
) -> None:
    one = finding(Stage.FORWARD, f"layers.{layer}." + "a" * length, "forward")
    drawn = ElementTree.fromstring(model_drawing(replace(diagnosis, findings=(one,))))
    label = next(text for text in drawn.iter("text") if text.get("class") == "said")
    extent = 7.4 * len(label.text or "")
    at = float(label.get("x", "0"))
    left = at - extent if label.get("text-anchor") == "end" else at
    assert left >= 0
    assert left + extent <= WIDTH


def test_the_inside_of_the_box_that_holds_the_origin_is_drawn(diagnosis: Diagnosis) -> None:
    drawn = model_drawing(diagnosis)
    assert 'class="lens"' in drawn
    assert "erred" in drawn
    assert 'class="lens"' not in model_drawing(replace(diagnosis, findings=()))


def test_numbers_that_are_none_or_infinite_are_drawn(diagnosis: Diagnosis) -> None:
    path = path_of(MODULES, lambda _, at: (None, "inf", 0.0)[at % 3])
    for phase in ("forward", "backward"):
        ElementTree.fromstring(error_drawing(replace(diagnosis, path=path), phase))


def test_runs_that_agree_have_a_page_too(diagnosis: Diagnosis, tmp_path: Path) -> None:
    headline = "The runs agree within rounding."
    agreeing = replace(diagnosis, outcome=Outcome.AGREE, findings=(), headline=text(headline), path=())
    page = page_of(agreeing, tmp_path)
    assert "<svg" not in page
    assert headline in page
    assert headline in "\n".join(lines_of(diagnosis_report(agreeing)))


@pytest.mark.parametrize("outcome", [Outcome.AGREE, Outcome.UNDECIDED])
def test_what_programs_do_otherwise_is_told_where_nothing_else_is(
    outcome: Outcome, diagnosis: Diagnosis
) -> None:
    """Beside findings the code that differs stands with each; other notes are of the comparison alone."""
    places = {"target": "a", "reference": "b", "target_at": "p.py:1", "reference_at": "q.py:2"}
    code = reason(EvidenceCode.CODE_DIFFERS, function="loss_of", **places)
    notes = (
        reason(NoteCode.CODE_DIFFERS, code),
        reason(NoteCode.STEPS_NOT_CAPTURED, first=1, last=1, step=2),
    )
    told = replace(diagnosis, outcome=outcome, findings=(), headline=text("so it is"), notes=notes)
    shown = " ".join("\n".join(lines_of(diagnosis_report(told))).split())
    assert "the code of loss_of differs" in shown
    assert "not captured" not in shown
    assert "the code of loss_of differs" not in "\n".join(
        lines_of(diagnosis_report(replace(told, findings=diagnosis.findings)))
    )


def test_two_hundred_layers_still_fit(diagnosis: Diagnosis) -> None:
    path = path_of([f"layers.{i}" for i in range(200)], lambda *_: 0.0)
    one = finding(Stage.FORWARD, "layers.120.attn", "forward")
    drawn = model_drawing(replace(diagnosis, path=path, findings=(one,)))
    assert ">120<" in drawn
    assert ">60<" not in drawn


def test_boxes_are_layers() -> None:
    assert block_of("layers.3.attn.qkv") == "layers.3"
    assert block_of("model.layers.3") == "model.layers.3"
    assert block_of("head") == "head"
    assert block_of("") is None
