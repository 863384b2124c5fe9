"""How deep a YAML or JSON text is nested, asked before a parser goes into it: libyaml's composer calls itself
at every level, and ends the process where the stack does."""

from __future__ import annotations

import re

import yaml

from trueup.errors import ConfigError

MOST = 100
"""levels; no configuration has twenty"""
LARGEST = 1_000_000
"""values, each counted as often as aliases repeat it"""
_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_DEEP_INDENT = re.compile(rf"^[ \t]{{{MOST},}}", re.MULTILINE)


def refuse_deep(text: str, path: str) -> None:
    """Raise where ``text`` is nested beyond ``MOST`` levels.

    Raises:
        ConfigError: naming the line.
    """
    if text.count("[") + text.count("{") + text.count("- -") < MOST and not _DEEP_INDENT.search(text):
        return
    depth = 0
    if text.lstrip()[:1] in "{[":
        for sign in _JSON.finditer(text):
            depth += (sign[0] in "[{") - (sign[0] in "]}")
            if depth > MOST:
                raise _too_deep(path, text.count("\n", 0, sign.start()) + 1)
        return
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST:
                raise _too_deep(path, 1 if event.start_mark is None else event.start_mark.line + 1)
    except (yaml.YAMLError, ValueError):  # whoever reads it says what is wrong
        return


def refuse_repeated(data: object, path: str) -> None:
    """Raise where aliases of YAML stand for more than ``LARGEST`` values: each to others.

    Raises:
        ConfigError: naming the file.
    """
    sizes: dict[int, int] = {}

    def size(one: object) -> int:
        if not isinstance(one, (dict, list)):
            return 1
        if id(one) not in sizes:
            sizes[id(one)] = 0  # of one that holds itself
            sizes[id(one)] = 1 + sum(map(size, one.values() if isinstance(one, dict) else one))
        return sizes[id(one)]

    if size(data) > LARGEST:
        raise ConfigError(
            f"{path}: its aliases stand for more than {LARGEST:,} values; is it a configuration?"
        )


def _too_deep(path: str, line: int) -> ConfigError:
    return ConfigError(f"{path}: nested deeper than {MOST} levels at line {line}; is it a configuration?")
