"""``iteration`` of a dump configuration: ``0|5-8|100-120`` or ``all``."""

from __future__ import annotations

from trueup.capture.options import StepSet
from trueup.errors import ConfigError

ALL = "all"
_EXAMPLE = 'write "0|5-8|100-120" or "all"'


def iterations_from_text(text: str) -> StepSet:
    """The iterations ``text`` asks for, as MindSpore reads it: no spaces, no commas.

    MindSpore takes a range it cannot read for one that holds nothing, and says so only in its own log.

    Raises:
        ConfigError: not of that form; says which part.

    Example:
        >>> 7 in iterations_from_text("0|5-8"), 9 in iterations_from_text("0|5-8")
        (True, False)
    """
    if text == ALL:
        return StepSet(None)
    ranges = []
    for part in text.split("|"):
        first, dash, last = part.partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise ConfigError(f"{part!r} in {text!r} is neither a number nor a range; {_EXAMPLE}")
        if dash and int(last) < int(first):
            raise ConfigError(f"{part!r} in {text!r} ends before it begins, so that it holds nothing")
        ranges.append((int(first), int(last) if dash else int(first)))
    return StepSet(tuple(ranges))


def text_from_iterations(iterations: StepSet) -> str:
    """The inverse of ``iterations_from_text``.

    Example:
        >>> text_from_iterations(StepSet(((0, 0), (5, 8))))
        '0|5-8'
    """
    if iterations.ranges is None:
        return ALL
    return "|".join(f"{a}" if a == b else f"{a}-{b}" for a, b in iterations.ranges)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
