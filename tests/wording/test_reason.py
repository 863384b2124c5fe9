"""Reasons are values: compared, hashed, written and read back."""

from __future__ import annotations

import json

from hypothesis import given as for_all
from hypothesis import strategies as st

from trueup.types.codes import CurvesCode, GivenCode
from trueup.types.reason import Reason, given, read_reason, read_reasons, reason, reason_from_json
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict, verdict_from_json
from trueup.wording import document, text

names = st.sampled_from(["site", "module", "rel_l2", "count"])
numbers = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False))
places = st.one_of(st.text(max_size=6), st.lists(st.text(max_size=3), max_size=2).map(tuple))


@st.composite
def reasons(draw: st.DrawFn, depth: int = 1) -> Reason:
    parts = draw(st.lists(reasons(depth - 1), max_size=2)) if depth else []
    return Reason(
        GivenCode.TEXT,
        tuple(draw(st.dictionaries(names, numbers, max_size=2)).items()),
        tuple(draw(st.dictionaries(names, places, max_size=2)).items()),
        tuple(parts),
    )


@for_all(reasons())
def test_what_is_written_is_read_back(one: Reason) -> None:
    again = reason_from_json(json.loads(json.dumps(one.to_json(), allow_nan=False)))
    assert again == one
    assert hash(again) == hash(one)


def test_facts_are_sorted_by_their_type() -> None:
    one = reason(GivenCode.TEXT, text="x", n=3, ratio=0.5, flag=True, names=["a", "b"], unknown=None)
    assert dict(one.numbers) == {"n": 3, "ratio": 0.5, "flag": 1, "unknown": None}
    assert dict(one.places) == {"text": "x", "names": ("a", "b")}
    assert one.number("n") == 3
    assert one.place("names") == ("a", "b")
    assert one.number("text") is None


def test_a_part_is_found_by_its_code() -> None:
    whole = Reason(GivenCode.TEXT, parts=(given("inner"),))
    assert whole.has(GivenCode.TEXT)
    assert given("x").code is GivenCode.TEXT


def test_sentences_of_version_1_and_unknown_codes_are_kept_as_given() -> None:
    assert text(reason_from_json("an old sentence")) == "an old sentence"
    later = {"headline": "said then", "headline_reason": {"code": "room.of_tomorrow"}}
    assert read_reason(later, "headline") == given("said then")
    assert read_reason({"headline": "said before"}, "headline") == given("said before")
    assert read_reason({}, "headline") is None


def test_text_stands_beside_the_reason() -> None:
    late = reason(CurvesCode.NOT_FINITE, step=3, column="loss", what="NaN")
    plain = document({"headline": late, "evidence": (late, given("seen")), "next": late, "n": [1, 2]})
    assert plain["headline"] == text(late)
    assert plain["headline_reason"] == {
        "code": "curves.not_finite",
        "numbers": {"step": 3},
        "places": {"column": "loss", "what": "NaN"},
    }
    assert plain["evidence"] == [text(late), "seen"]
    assert [one["code"] for one in plain["evidence_reasons"]] == ["curves.not_finite", "given.text"]
    assert (plain["next"], plain["next_note"]) == (None, text(late))
    assert plain["n"] == [1, 2]
    assert read_reason(plain, "headline") == late
    assert read_reasons(plain, "evidence") == (late, given("seen"))


def test_a_verdict_of_version_1_is_read() -> None:
    old = {
        "outcome": "differ",
        "headline": "The runs first differ in the forward pass.",
        "where": "layers.0 · output",
        "evidence": ["relative difference 1e-3", "relative difference 1e-3"],
        "next": "trueup compare A B",
        "next_note": "to see more",
        "before": "All 3 records",
    }
    read = verdict_from_json(old)
    assert read.outcome is Outcome.DIFFER
    assert read.exit_code == 1
    assert [text(one) for one in read.evidence] == ["relative difference 1e-3"]
    assert read.next is not None
    assert text(read.next) == "trueup compare A B, to see more"
    assert verdict_from_json(document(read)) == read
    assert isinstance(read, Verdict)
