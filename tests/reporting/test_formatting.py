"""Numbers and names as people read them."""

from __future__ import annotations

import math

import pytest
from markupsafe import Markup

from trueup.reporting.formatting import count, elide, number, plain, ratio, short_frame, short_site, upright


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (3.1e-3, "3.1e-3"),
        (0.0195, "0.0195"),
        (12345.6, "12,346"),
        (-2.5e-7, "-2.5e-7"),
        (1.2e20, "1.2e20"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.4, "0.4×"), (1291.7, "1,292×"), (3e7, "3e7×"), (math.nan, "nan")]
)
def test_ratio(value: float | None, text: str) -> None:
    assert ratio(value) == text


def test_names_cannot_steer_a_terminal() -> None:
    assert plain("a\x1b[2Jb\u202ec") == "a�[2Jb�c"


def test_elide_keeps_both_ends() -> None:
    assert elide("layers.0.attn.qkv.weight", 11) == "laye…weight"
    assert len(elide("x" * 100, 20)) == 20
    assert elide("short", 20) == "short"


def test_frames_and_sites() -> None:
    assert short_frame("/a/b/model.py:61 forward | x = f(x)") == ("model.py:61 forward", "x = f(x)")
    assert short_frame("C:\\a\\model.py:6 f") == ("model.py:6 f", "")
    assert short_site("a · torch.nn.functional.linear[1]") == "a · F.linear[1]"
    assert count(1, "record") == "1 record"
    assert count(1200, "record") == "1,200 records"


def test_upright_keeps_markup_and_turns_nothing() -> None:
    assert upright("a\u202eb\u2066c\u200fd é") == "a\ufffdb\ufffdc\ufffdd é"
    marked = upright(Markup("<b>\u202e</b>"))
    assert isinstance(marked, Markup)
    assert marked == "<b>\ufffd</b>"
