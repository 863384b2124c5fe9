"""Numbers and names as people read them, the same in every report."""

from __future__ import annotations

import math
import re
from typing import SupportsFloat

_DIRECTION = r"\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069"
_TURNS = {code: "\ufffd" for code in range(0x2070) if re.match(f"[{_DIRECTION}]", chr(code))}
_TURNING = re.compile(f"[{_DIRECTION}]")
_CONTROL = re.compile(rf"[\x00-\x1f\x7f-\x9f{_DIRECTION}\ud800-\udfff]")


def plain(text: object) -> str:
    """The text without control characters: a name cannot move a cursor or hide what it says. Ends of lines
    and tabs, as templates have them, are written as in a string."""
    return _CONTROL.sub("\ufffd", str(text).replace("\n", "\\n").replace("\t", "\\t"))


def upright(text: str) -> str:
    """The text without characters that turn its direction, and that of what stands beside it."""
    if text.isascii() or _TURNING.search(text) is None:  # a page's script of 5 MB has none
        return text
    return text.translate(_TURNS)


def number(value: SupportsFloat | str | None, *, digits: int = 3) -> str:
    """A measured number in few characters: ``0``, ``0.0123``, ``3.1e-3``, ``inf``; an en dash for none."""
    if value is None:
        return "–"
    value = float(value)
    if not math.isfinite(value) or value == 0:
        return "0" if value == 0 else str(value)
    if 1e-2 <= abs(value) < 1e5:
        return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.{max(0, digits - 2)}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def ratio(value: SupportsFloat | str | None) -> str:
    """How many times a bound: ``1,292×``, ``0.4×``; an en dash for none."""
    if value is None:
        return "–"
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if value >= 1e6:
        return number(value, digits=2) + "×"
    return (f"{value:,.0f}" if value >= 10 else f"{value:.2g}") + "×"


def count(value: int, noun: str = "") -> str:
    """A whole number with thousands separators, and its noun in the right number."""
    return f"{value:,}" if not noun else f"{value:,} {noun}{'' if value == 1 else 's'}"


def elide(text: str, width: int) -> str:
    """The text within ``width`` characters, its middle left out if need be: both ends of a site say most."""
    if len(text) <= width:
        return text
    head = max(1, (width - 1) * 2 // 5)
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


def as_sentence(text: str) -> str:
    """With a capital, unless it begins with a name out of the program.

    Example:
        >>> as_sentence("the mask differs"), as_sentence("layers.0.scale differs")
        ('The mask differs', 'layers.0.scale differs')
    """
    return text[:1].upper() + text[1:] if text.partition(" ")[0].strip(",:;").isalpha() else text


def short_frame(frame: str) -> tuple[str, str]:
    """Place and source line of a stored frame: ``("model.py:61 forward", "x = f(x)")``."""
    place, _, line = frame.partition(" | ")
    return re.split(r"[\\/]", place)[-1], line.strip()


def short_site(site: str) -> str:
    """A site with API names as programs write them: ``F.linear``, ``Tensor.add``."""
    return site.replace("torch.nn.functional.", "F.").replace("torch.Tensor.", "Tensor.")
