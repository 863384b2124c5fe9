"""Names as a person sees them."""

from __future__ import annotations

import pytest

from trueup.types.codes.verdict import VerdictCode
from trueup.types.reason import reason
from trueup.types.site import shown_name
from trueup.wording import text


@pytest.mark.parametrize(
    ("name", "shown"),
    [("", "(root)"), (" ", "' '"), ("\u00a0\t", "'\u00a0\t'"), ("layers.0", "layers.0"), (" a", " a")],
)
def test_a_blank_name_can_be_seen(name: str, shown: str) -> None:
    assert shown_name(name) == shown


def test_a_sentence_quotes_it() -> None:
    facts = {"phase": "forward", "slot": "output.0", "step": 0}
    blank, named = (text(reason(VerdictCode.FIRST_DIVERGENCE, module=m, **facts)) for m in ("  ", "norm"))
    assert "'  '" in blank
    assert "'" not in named
