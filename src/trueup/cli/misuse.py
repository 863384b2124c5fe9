"""Mistakes the command-line library finds, in a person's words: where, what was found, what is wanted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trueup.errors import ConfigError

_WANTED = (
    (r".*valid integer.*", "a whole number is wanted"),
    (r".*valid number.*", "a number is wanted"),
    (r".*greater than or equal to (\S+)", r"a number from \1 is wanted"),
    (r".*less than or equal to (\S+)", r"a number up to \1 is wanted"),
)


def refuse_empty_words(argv: Sequence[str]) -> None:
    """An empty word before the captured command is never meant: nothing would be read as all, or as here.

    Raises:
        ConfigError: there is one, naming its option.
    """
    words = list(argv[: argv.index("--")] if "--" in argv else argv)
    if "" in words:
        before = words[max(words.index("") - 1, 0)]
        what = before if before.startswith("-") else "an argument"
        raise ConfigError(f"{what} is empty; is it a variable of the shell that is not set?")


def sentence_of(error: Any, argv: Sequence[str]) -> str:
    """One sentence for an error of the command-line library.

    Example:
        >>> class Wrong(Exception):
        ...     param = type("Option", (), {"opts": ["--seed"], "name": "seed"})
        ...     format_message = lambda self: "Invalid value for '--seed': Input should be a valid integer"
        >>> sentence_of(Wrong(), ["capture", "--seed", "x"])
        '--seed x: a whole number is wanted'
    """
    message = " ".join(error.format_message().split()).replace("Value error, ", "")
    parameter = getattr(error, "param", None)
    if parameter is None:
        return str(message)
    message = message.replace(f"argument '{parameter.name}'", f"argument '{parameter.name.upper()}'")
    for pattern, wanted in _WANTED:
        if re.fullmatch(pattern, message):
            option, value = _given(parameter.opts, argv)
            return f"{option} {value}: {re.sub(pattern, wanted, message)}"
    return str(message)


def _given(names: Sequence[str], argv: Sequence[str]) -> tuple[str, str]:
    """An option as a person wrote it, and its value."""
    for word, after in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return name, value if equals else after
    return names[-1], ""
