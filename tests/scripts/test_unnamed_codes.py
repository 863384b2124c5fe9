"""Codes are concluded with, and named by tests: the list of those that no test names only shrinks."""

from __future__ import annotations

from scripts.unnamed_codes import _in_python, dead, unnamed

from trueup.types.codes import VerdictCode
from trueup.types.codes.kinds import KindReason

MOST_UNNAMED = 0
"""codes that no test names; a new code comes with a test of its own"""


def test_every_code_is_concluded_with() -> None:
    assert dead() == []


def test_fewer_codes_without_a_test() -> None:
    found = unnamed()
    assert sum(map(len, found.values())) <= MOST_UNNAMED, found


def test_codes_are_found_under_the_name_that_a_module_gives_them() -> None:
    text = "from trueup.types.codes.kinds import KindReason as Kind\nx = Kind.SCALED, Other.NEGATED"
    text += ', "verdict.agree"'
    assert set(_in_python(text)) == {KindReason.SCALED, VerdictCode.AGREE}
