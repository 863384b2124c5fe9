"""Flags of a command kept as keys of a YAML file: Megatron-LM's own test recipes (``--num-layers: 32``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

from trueup.checklist.readers import command_line, environment
from trueup.checklist.readers.mappings import parse
from trueup.checklist.readers.marks import yaml_lines
from trueup.checklist.settings import Setting, SettingsDocument, flat

_FLAG = re.compile(r"^\s*['\"]?--[a-z][\w-]*['\"]?\s*:\s", re.MULTILINE)
_FEWEST_FLAGS = 3


def looks_like(text: str) -> bool:
    """Whether keys of this YAML are flags."""
    return len(_FLAG.findall(text)) >= _FEWEST_FLAGS


def documents(text: str, path: str) -> list[SettingsDocument]:
    """The flags as the command they make, and the variables beside them.

    Raises:
        ConfigError: it is no YAML, or the flags are of no program that is known.
    """
    data = cast("Mapping[str, object]", parse(text, path)[0])
    lines = yaml_lines(text)
    words = [
        (word, f"{path}:{lines[key]}" if key in lines else path)
        for key, value in flat(data)
        for word in _words(key.rpartition(".")[2], value)
    ]
    found = command_line.from_words(words, path=path, kind="shell")
    variables = dict(_variables(data, lines, path))
    found[0] = replace(
        found[0],
        notes=(f"{path}: the flags of a command, kept in YAML",),
        exports={name: str(one.value) for name, one in variables.items()},
    )
    if known := environment.known(variables):
        found.append(SettingsDocument(dialect="environment", path=path, settings=known, kind="environment"))
    return found


def _words(key: str, value: object) -> list[str]:
    """A flag as a command has it; one that is false or empty is left out."""
    if not key.startswith("--") or value is False or value is None:
        return []
    if value is True:
        return [key]
    if isinstance(value, str) and key[2:].replace("-", "_") in command_line.SEVERAL:
        return [key, *value.split()]  # as the shell does
    return [key, *map(str, value if isinstance(value, list) else [value])]


def _variables(
    data: Mapping[str, object], lines: Mapping[str, int], path: str
) -> Iterator[tuple[str, Setting]]:
    for key, value in flat(data):
        name = key.rpartition(".")[2]
        if name.isupper() and not isinstance(value, (list, bool)):
            yield name, Setting(name, str(value), f"{path}:{lines[key]}" if key in lines else path)
