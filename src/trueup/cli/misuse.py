"""Errors of the command-line library as one sentence: where, what was expected, what was given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

_EXPECTED = {"valid integer": "an integer", "valid number": "a number"}


class UsageProblem(Protocol):
    """An error of the command-line library."""

    def format_message(self) -> str:
        """What it says itself."""


def sentence_of(error: UsageProblem, argv: Sequence[str], usage: str) -> str:
    """One sentence for an error of the command-line library; ``usage`` shows how the verb is called.

    Example:
        >>> class Wrong:
        ...     param = type("Option", (), {"opts": ["--seed"]})
        ...     format_message = lambda self: "Invalid value for '--seed': Input should be a valid integer"
        >>> sentence_of(Wrong(), ["capture", "--seed", "x"], "trueup capture -o RUN -- COMMAND")
        "--seed: expected an integer (got 'x')"
    """
    message = " ".join(error.format_message().split()).replace("Value error, ", "")
    missing = re.match(r"Missing (?:argument|option) '([^']+)'", message)
    if missing is not None:
        return f"{missing[1].split(' / ')[0]} is missing: {usage}"
    names = getattr(getattr(error, "param", None), "opts", [])
    for word, what in _EXPECTED.items():
        if names and word in message:
            option, value = _given(names, argv)
            return f"{option}: expected {what} (got {value!r})"
    return message


def _given(names: Sequence[str], argv: Sequence[str]) -> tuple[str, str]:
    """An option as a person wrote it, and its value."""
    for word, after in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return name, value if equals else after
    return names[-1], ""
