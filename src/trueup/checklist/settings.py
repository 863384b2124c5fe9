"""What a reader takes from one file: keys with their values and places, nothing interpreted."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_MEMBER = re.compile(r"<[A-Z]\w*\.\w+: '?(?P<value>[^'>]+)'?>|[A-Z][a-z]\w*\.(?P<name>[A-Z][A-Z0-9_]*)")
_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+$")
_WORDS = {"true": True, "false": False, "none": None, "null": None}
_NONE_AS_CHOICE = "none"
"""the word in small letters is a choice of its own: no position code, no load balancing"""


@dataclass(frozen=True, slots=True)
class Undecided:
    """In the place of a value: a key that may be set, and why that cannot be known from the file."""

    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """One key as it was written; ``place`` is ``file:line``, or the file alone."""

    key: str
    value: object
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsDocument:
    """One file (or command line, or folder) of one dialect.

    ``data`` is the nested form a writer needs; ``settings`` the flat one the dialect's expressions read.
    ``notes`` are limits of the reading a person must know of.
    """

    dialect: str
    path: str
    settings: Mapping[str, Setting]
    data: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    kind: str = "yaml"
    """how it is written: ``yaml json toml shell log checkpoint trace environment``"""
    exports: Mapping[str, str] = field(default_factory=dict)
    """every variable a launch script exports, with its value"""
    setup: tuple[str, ...] = ()
    """its lines that prepare the shell: ``source set_env.sh``, ``ulimit -n 65536``"""
    repeated: tuple[tuple[tuple[str | int, ...], ...], ...] = ()
    """places of values that the file writes once and repeats (``&n 61``, ``*n``), a group each"""


def member(value: object) -> object:
    """The value of an enum's member as Python prints it; anything else as it is.

    Example:
        >>> member("SchedulerType.COSINE"), member("<Optim.ADAMW: 'adamw_torch'>"), member("a.B")
        ('cosine', 'adamw_torch', 'a.B')
    """
    found = _MEMBER.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else found["value"] or found["name"].lower()


def scalar(text: str) -> object:
    """A word of a command line or a log as a value: number, truth value, None or the text itself."""
    word = text.strip()
    if word.lower() in _WORDS and word != _NONE_AS_CHOICE:
        return _WORDS[word.lower()]
    try:
        return int(word)
    except ValueError:
        pass
    try:
        value = float(word)
    except ValueError:
        return word
    return value if math.isfinite(value) else word


def tidy(value: object) -> object:
    """A value of YAML or JSON: ``1e-5``, which YAML 1.1 takes for text, is a number."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value.strip()) else value


def flat(data: Mapping[str, object], *, prefix: str = "") -> Iterable[tuple[str, object]]:
    """Every leaf of nested mappings under its dotted key; lists and empty mappings are leaves."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, prefix=f"{name}.")
            continue
        yield name, [tidy(item) for item in value] if isinstance(value, list) else tidy(value)
