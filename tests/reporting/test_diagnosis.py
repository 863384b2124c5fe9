"""A diagnosis on the screen and as a page: what it says, that it is whole, that names cannot break it."""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from trueup.reporting.diagnosis import write_html
from trueup.reporting.diagnosis_drawing import model_drawing
from trueup.reporting.diagnosis_errors import error_drawing
from trueup.reporting.diagnosis_model import block_of, report_from
from trueup.reporting.diagnosis_terminal import print_diagnosis

STAGES = (
    *("config", "data", "weights", "forward", "backward", "reduction", "optimizer", "loss"),
    "long_run",
)


def finding(stage: str, module: str, phase: str, **given: Any) -> dict[str, Any]:
    """One finding as diagnosis.json has it."""
    kind = {"name": "wrong_scale", "family": "model", "confidence": 0.93, "sentence": "twice the reference's"}
    return {
        "stage": stage,
        "headline": f"{module} is wrong in the {stage}.",
        "module": module,
        "site": f"{module}, output.0",
        "phase": phase,
        "step": 0,
        "rank": 0,
        "source": "model.py:61 forward | x = f(x)",
        "kinds": [{**kind, "causes": ["a cause"], "next": None}],
        "confidence": 0.97,
        "evidence": ["off by 1.0 of its norm"],
        "counter_evidence": ["everything before it is equal bit for bit"],
        "causes": ["a factor left out"],
        "next": "trueup compare a b -o out",
        "next_note": "to see more",
        "origin": {"basis": "replay", "reference_source": "other.py:7 forward | y = f(x)"},
        **given,
    }


@pytest.fixture
def document() -> dict[str, Any]:
    """Four layers, wrong from the second on."""
    modules = ["emb", *(f"layers.{i}{part}" for i in range(4) for part in (".ln", ".attn", "")), "head", ""]
    path = []
    for phase, order in (("forward", modules), ("backward", modules[::-1])):
        for at, module in enumerate(order):
            wrong = phase == "backward" or at >= 5
            point = {"phase": phase, "module": module, "type": "Part", "rel_l2": 1e-2 if wrong else 0.0}
            path.append({**point, "tolerance": 1e-6, "order": at})
    status = (
        *("passed", "passed", "passed", "failed", "consequence", "consequence", "undecided", "consequence"),
        "skipped",
    )
    stages = [
        {
            "stage": s,
            "title": f"{s}: what",
            "status": w,
            "said": f"{s} said",
            "evidence": ["seen"],
            "details": {},
        }
        for s, w in zip(STAGES, status, strict=True)
    ]
    return {
        "schema_version": 1,
        "target": "runs/target",
        "reference": "runs/reference",
        "outcome": "differ",
        "exit_code": 1,
        "headline": "layers.1.attn is wrong in the forward. 1 more finding.",
        "confidence": 0.97,
        "findings": [
            finding("forward", "layers.1.attn", "forward"),
            finding("optimizer", "emb.weight", "optimizer"),
        ],
        "stages": stages,
        "path": path,
        "losses": [{"step": 0, "target": 5.5, "reference": 5.25}],
        "notes": ["a note"],
        "runs": {"compare": "out/compare"},
        "tolerance": "dtype bound",
        "command": "python train.py",
        "seconds": {"compare": 1.0},
    }


def screen(document: dict[str, Any], width: int = 100) -> str:
    """The screen as text."""
    console = Console(width=width, record=True, force_terminal=False)
    print_diagnosis(document, console)
    return console.export_text()


def test_the_screen_says_what_where_why_and_what_next(document: dict[str, Any]) -> None:
    text = screen(document)
    for words in (
        "layers.1.attn is wrong in the forward",
        "model.py:61 forward",
        "other.py:7",
        "wrong scale",
        "97%",
        "off by 1.0",
        "equal bit for bit",
        "a factor left out",
        "emb.weight is wrong",
        "trueup compare a b -o out",
    ):
        assert words in text, words
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 100


def test_the_page_is_whole_and_loads_nothing(document: dict[str, Any], tmp_path: Path) -> None:
    page = write_html(document, tmp_path / "diagnosis.html").read_text(encoding="utf-8")
    for words in (
        "From the symptom to the origin",
        "Stage by stage",
        "Likely causes",
        "off by 1.0 of its norm",
    ):
        assert words in page, words
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("<svg") == 3


def test_no_error_is_drawn_where_there_is_none(document: dict[str, Any], tmp_path: Path) -> None:
    for point in document["path"]:
        point["rel_l2"] = 0.0 if point["phase"] == "forward" else 1e-3
    page = write_html(document, tmp_path / "diagnosis.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2


def test_names_are_escaped(document: dict[str, Any], tmp_path: Path) -> None:
    bad = copy.deepcopy(document)
    bad["findings"][0]["headline"] = bad["headline"] = "<script>alert(1)</script>"
    for point in bad["path"]:
        point["module"] = point["module"].replace("emb", '<b onload="x">')
    page = write_html(bad, tmp_path / "diagnosis.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<b onload" not in page


@pytest.mark.parametrize(
    "stage", ["forward", "backward", "data", "weights", "reduction", "optimizer", "resume"]
)
def test_drawings_are_well_formed_wherever_the_error_is(document: dict[str, Any], stage: str) -> None:
    phase = "forward" if stage in ("forward", "data", "weights") else "backward"
    document["findings"] = [finding(stage, "layers.1.attn", phase), *document["findings"]]
    report = report_from(document)
    for drawing in (
        model_drawing(report),
        error_drawing(report, "forward"),
        error_drawing(report, "backward"),
    ):
        root = ElementTree.fromstring(drawing)
        assert root.tag == "svg"
    numbers = [
        e.text for e in ElementTree.fromstring(model_drawing(report)).iterfind(".//g[@class='flag']/text")
    ]
    assert "1" in numbers


def test_the_inside_of_the_box_that_erred_is_drawn(document: dict[str, Any]) -> None:
    drawn = model_drawing(report_from(document))
    assert 'class="lens"' in drawn
    assert "erred" in drawn
    document["findings"] = []
    assert 'class="lens"' not in model_drawing(report_from(document))


def test_numbers_that_are_none_or_infinite_are_drawn(document: dict[str, Any]) -> None:
    for at, point in enumerate(document["path"]):
        point["rel_l2"] = (None, "inf", 0.0)[at % 3]
    for phase in ("forward", "backward"):
        ElementTree.fromstring(error_drawing(report_from(document), phase))


def test_runs_that_agree_have_a_page_too(document: dict[str, Any], tmp_path: Path) -> None:
    document |= {
        "outcome": "agree",
        "findings": [],
        "headline": "The runs agree within rounding.",
        "path": [],
    }
    page = write_html(document, tmp_path / "diagnosis.html").read_text(encoding="utf-8")
    assert "The runs agree" in page
    assert "The runs agree within rounding." in screen(document)


def test_two_hundred_layers_still_fit(document: dict[str, Any]) -> None:
    document["path"] = [
        {
            "phase": "forward",
            "module": f"layers.{i}",
            "type": "Block",
            "rel_l2": 0.0,
            "tolerance": 1e-6,
            "order": i,
        }
        for i in range(200)
    ]
    document["findings"] = [finding("forward", "layers.120.attn", "forward")]
    drawn = model_drawing(report_from(document))
    assert ">120<" in drawn
    assert ">60<" not in drawn


def test_boxes_are_layers() -> None:
    assert block_of("layers.3.attn.qkv") == "layers.3"
    assert block_of("model.layers.3") == "model.layers.3"
    assert block_of("head") == "head"
    assert block_of("") is None
