"""What the pictures of a diagnosis share: the frame, and what a score looks like and is called."""

from __future__ import annotations

import math
from xml.sax.saxutils import quoteattr


def svg(width: float, height: float, inside: str, label: str) -> str:
    """A drawing that scales with the page."""
    return (
        f'<svg class="drawing" viewBox="0 0 {width:g} {height:g}" role="img" aria-label={quoteattr(label)}>'
        f"{inside}</svg>"
    )


def tone_of(score: float | None) -> str:
    """The class of the style sheet that gives a score, error over what is allowed, its colour."""
    if score is None:
        return "open"
    if score == 0:
        return "equal"
    if score <= 1:
        return "within"
    return "far" if score > 100 else "over"


def said_of(score: float | None) -> str:
    """A score in words."""
    if score is None:
        return "not compared"
    if score == 0:
        return "equal bit for bit"
    if math.isinf(score):
        return "not comparable at all"
    return f"{score:.3g} times what is allowed"
