"""Confidence: what trueup knows, what was counted, and what the scoreboard shows are one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bugzoo.entries import HELD_OUT, TUNING, entries
from bugzoo.scoreboard import reliability

from trueup.types.confidence import (
    ENOUGH,
    MEASURED,
    Question,
    Word,
    confidence_from_json,
    confidence_of,
)

COUNTS: reliability.Counts = json.loads(reliability.RELIABILITY.read_text(encoding="utf-8"))


def test_the_table_is_what_was_counted() -> None:
    counted = {
        (Question(question), Word(word)): tuple(numbers)
        for question, parts in COUNTS.items()
        for word, numbers in parts[TUNING].items()
    }
    assert dict(MEASURED) == counted


@pytest.mark.parametrize("question", Question)
def test_it_holds_on_what_was_held_out(question: Question) -> None:
    error = reliability.expected_error(COUNTS[question.value])
    assert error is not None
    assert error <= 0.05


def test_the_scoreboard_shows_it() -> None:
    page = (reliability.HERE / "SCOREBOARD.md").read_text(encoding="utf-8")
    assert all(line in page for line in reliability.table(COUNTS))


def test_a_table_that_does_not_hold_is_seen() -> None:
    words = {word.value: [50, 50] for word in Word}
    assert reliability.expected_error({TUNING: words, HELD_OUT: words}) == pytest.approx(0.01)
    wrong = {word.value: [25, 50] for word in Word}
    assert reliability.expected_error({TUNING: words, HELD_OUT: wrong}) == pytest.approx(0.49)
    few = {word.value: [ENOUGH - 1, ENOUGH - 1] for word in Word}
    assert reliability.expected_error({TUNING: few, HELD_OUT: words}) is None


def test_a_control_that_is_said_to_differ_counts_as_wrong(tmp_path: Path) -> None:
    entry = next(one for one in entries().values() if one.is_benign and one.part == TUNING)
    verdict = {"outcome": "differ", "where": "a", "owner": "a", "phase": "forward", "step": 0, "headline": ""}
    document = {"verdict": {**verdict, "confidence_word": "likely"}}
    (tmp_path / f"{entry.name}.json").write_text(json.dumps({"compare": document}))
    assert reliability.count(tmp_path)["divergence"][TUNING]["likely"] == [0, 1]


def test_words_of_documents_of_both_versions() -> None:
    known = confidence_of(Question.PLACE, Word.CERTAIN)
    assert confidence_from_json({"confidence": known.share, "confidence_word": "certain"}) == known
    assert [str(confidence_from_json({"confidence": x})) for x in (0.97, 0.7, 0.2, None)] == [
        "certain",
        "likely",
        "possible",
        "None",
    ]
