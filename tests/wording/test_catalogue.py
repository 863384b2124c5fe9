"""Every code of every room has a phrase, and every phrase reads well at every width."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from itertools import product

import pytest
from rich.console import Console
from rich.text import Text

from trueup.types.codes import Code, MismatchCode
from trueup.types.codes.base import all_codes
from trueup.types.codes.kinds import KindReason
from trueup.types.reason import Reason, reason
from trueup.wording import advice, command, headline, phrase_of, phrases, text
from trueup.wording.cause_headlines import cause_headline
from trueup.wording.phrase import absolute, count, listed, percent, times

_PLURAL = re.compile(r"(?<![\d.,])1 (?!is\b|was\b|has\b|across\b)[a-z]+[^s\W]s\b")
"""a count of one before a plural"""


def samples(code: Code) -> list[Reason]:
    """The sample reasons of a code."""
    found = []
    for facts in phrase_of(code).samples:
        parts = facts.get("parts", ())
        plain = {name: value for name, value in facts.items() if name != "parts"}
        found.append(reason(code, *parts, **plain))  # type: ignore[misc,arg-type]
    return found


def test_the_catalogue_holds_every_code_and_nothing_else() -> None:
    assert set(phrases()) == set(all_codes())


def test_values_of_codes_are_unique_and_named_after_their_room() -> None:
    values = [code.value for code in all_codes()]
    assert len(values) == len(set(values))
    assert all(re.fullmatch(r"[a-z_]+(\.[a-z0-9_]+)+", value) for value in values)


@pytest.mark.parametrize("code", sorted(all_codes(), key=str), ids=str)
def test_every_code_is_rendered(code: Code) -> None:
    assert samples(code), "a phrase needs samples"
    for one in samples(code):
        said = [text(one), headline(one), advice(one), command(one)]
        for line in filter(None, said):
            assert line == line.strip()
            assert not re.search(r"\{|\}|\bNone\b|\bnan\b|  ", line), line
            assert not line.endswith(".."), line
        assert not _PLURAL.search(text(one)), text(one)
        if phrase_of(code).headline is not None:
            assert len(headline(one).split()) <= 15, headline(one)


@pytest.mark.parametrize("code", sorted(all_codes(), key=str), ids=str)
def test_no_number_is_too_odd_to_be_said(code: Code) -> None:
    """A loss that is NaN is null in a document, and infinite ones exist: no report may break on them."""
    for one, number in product(samples(code), (None, math.nan, math.inf, -math.inf)):
        for name in (name for name, value in one.numbers if isinstance(value, float)):
            odd = replace(one, numbers=tuple((n, number if n == name else v) for n, v in one.numbers))
            for line in filter(None, (text(odd), headline(odd), advice(odd), command(odd))):
                assert not re.search(r"\bNone\b", line), line


@pytest.mark.parametrize("width", [40, 80, 120])
def test_every_code_fits_every_width(width: int) -> None:
    for code in all_codes():
        for one in samples(code):
            out = io.StringIO()
            Console(file=out, width=width, color_system=None).print(Text(text(one), overflow="fold"))
            lines = out.getvalue().splitlines()
            assert max(map(len, lines)) <= width
            assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", text(one))


def test_forms() -> None:
    assert (count(1, "record"), count(1200, "record"), count(2, "entry")) == (
        "1 record",
        "1,200 records",
        "2 entries",
    )
    assert listed("abcdefg") == "a, b, c, d and 3 more"
    assert listed("abcde") == "a, b, c, d and e"
    assert listed(["a"]) == "a"
    assert (times(1.5), times(19_812.3), times(2.5e9)) == ("1.5 times", "19,800 times", "2.5e+09 times")


@pytest.mark.parametrize(
    ("value", "words"), [(0.0312, "0.031"), (1.5, "1.50"), (0.0, "0"), (3e-7, "0.00000030"), (None, "–")]
)
def test_absolute_values_are_decimals(value: float | None, words: str) -> None:
    assert absolute(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0.0123, "1.2 %"), (0.10, "10.0 %"), (0.0003, "0.03 %"), (0.0, "0.0 %"), (None, "–")]
)
def test_relative_values_are_percents(value: float | None, words: str) -> None:
    assert percent(value) == words


@pytest.mark.parametrize(
    ("phase", "slot", "what"),
    [
        ("forward", "output.0", "Result of"),
        ("forward", "input.0", "An input made in"),
        ("loss", "value", "Result of"),
        ("backward", "output.log_probs", "Gradient of"),
        ("param_grad", "local", "Gradient of"),
        ("optimizer", "param", "Update of"),
        ("param", "value", "Weight of"),
    ],
)
def test_a_headline_names_what_is_scaled(phase: str, slot: str, what: str) -> None:
    """The loss of a pair of answers is ln 2 whatever beta is; the gradient it sends back is not."""
    said = reason(KindReason.SCALED, factor=2.0, origin_phase=phase, origin_slot=slot)
    assert cause_headline(said, (), "the loss") == f"{what} the loss is 2 times the reference's"


@pytest.mark.parametrize(("by", "named"), [(1, "previous"), (-1, "next")])
def test_a_shift_is_of_one_neighbour_in_headline_and_evidence(by: int, named: str) -> None:
    one = reason(MismatchCode.SHIFTED, by=by, moved=0.0, own=2.0)
    other = {"previous": "next", "next": "previous"}[named]
    for said in (str(headline(one)), text(one)):
        assert f"the {named} token" in said
        assert other not in said
