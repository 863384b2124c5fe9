"""Reasons are values: compared, hashed, written and read back."""

from __future__ import annotations

import json

from hypothesis import given as for_all
from hypothesis import strategies as st

from trueup.types.codes import GivenCode
from trueup.types.reason import Reason, given, reason, reason_from_json
from trueup.types.status import Outcome
from trueup.types.verdict import Verdict, verdict_from_json
from trueup.wording import text, to_json

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
    assert text(reason_from_json({"code": "room.of_tomorrow", "text": "said then"})) == "said then"


def test_text_stands_beside_the_code() -> None:
    plain = to_json(given("seen in the log"))
    assert list(plain)[:2] == ["code", "text"]
    assert plain["text"] == "seen in the log"


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
    assert verdict_from_json(read.to_json()) == read
    assert isinstance(read, Verdict)
