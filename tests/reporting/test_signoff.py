"""A sign-off on a screen, as a page, as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reporting.screens import lines_of
from trueup.accepting.item import Item, ProcedurePart, State
from trueup.accepting.signoff import SignOff
from trueup.curves.conditions import conditions
from trueup.reporting.document import Document
from trueup.reporting.render import write
from trueup.reporting.signoff import signoff_report
from trueup.types.codes import AcceptCode
from trueup.types.reason import Reason, given, reason


def assumed(key: str) -> Reason:
    """Traces show it, or a person vouches for it."""
    return reason(AcceptCode.OR_ASSUME, reason(AcceptCode.GIVE_TRACES), key=key)


def item(key: str, part: ProcedurePart, state: State, **more: object) -> Item:
    """An item of the sign-off."""
    facts = {
        "title": given(key),
        "binding": True,
        "measured": given("0.012"),
        "threshold": given("at most 0.005"),
        "origin": given("guide"),
    }
    return Item(key=key, part=part, state=state, **(facts | more))  # type: ignore[arg-type]


@pytest.fixture
def report() -> Document:
    """One item of each state."""
    signoff = SignOff(
        items=(
            item("settings", ProcedurePart.CHECKLIST, State.PASSED),
            item("<b>data</b>", ProcedurePart.PREPARATION, State.NOT_SHOWN, how=assumed("data")),
            item(
                "noise",
                ProcedurePart.PREPARATION,
                State.NOT_SHOWN,
                how=assumed("noise"),
                binding=False,
            ),
            item(
                "first loss",
                ProcedurePart.FIRST_STEPS,
                State.FAILED,
                evidence=(given("5.512 vs 5.5 | once"), given("second"), given("third")),
            ),
            item("mean", ProcedurePart.LONG_RUN, State.WARNING, binding=False),
        ),
        inputs=((reason(AcceptCode.INPUT, what="trace", side="target", repeat=0), "runs/npu"),),
        conditions=tuple(conditions(None, {})),
        by_hand=(reason(AcceptCode.EXPANSION),),
        notes=(given("a note"),),
    )
    return signoff_report(
        signoff,
        details={ProcedurePart.LONG_RUN: "long-run/curves.html"},
        reports=[Path("out/signoff.html")],
        missing=["no plotly"],
    )


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_screen_shows_every_item_and_how_to_show_the_rest(report: Document, width: int) -> None:
    lines = lines_of(report, width)
    text = " ".join(" ".join(lines).split())
    for words in (
        "first loss",
        "expected at most 0.005",
        "second",
        "--assume data,noise",
        "(2 items)",
        "no plotly",
    ):
        assert words in text, words
    assert "third" not in text, "two sentences of evidence on a screen"
    assert max(map(len, lines)) <= width


def test_the_page_escapes_names_and_links_reports(report: Document, tmp_path: Path) -> None:
    page = write(report, tmp_path / "signoff.html").read_text()
    assert "<b>data</b>" not in page
    assert '<a href="long-run/curves.html">' in page
    assert "third" in page
    assert page.count("<h2") >= 8


def test_the_text_has_a_cell_for_everything_and_boxes_to_tick(report: Document, tmp_path: Path) -> None:
    text = write(report, tmp_path / "signoff.md").read_text()
    assert "# Accuracy sign-off: Refused" in text
    assert "- [ ] Scenario expansion" in text
    assert "5.512 vs 5.5 \\| once; second; third | **failed** |" in text
    assert "&lt;b>data" in text
    assert "| reviewer |  |  |  |" in text
