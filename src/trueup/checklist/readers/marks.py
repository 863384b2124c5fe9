"""Lines of keys in YAML, JSON and TOML, so that every value can be shown with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

_SECTION = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+\s*(#.*)?$")
_ASSIGNMENT = re.compile(r"""\s*["']?([A-Za-z0-9_.\-]+)["']?\s*=""")


def yaml_lines(text: str) -> dict[str, int]:
    """Line of every dotted key of YAML or JSON text; empty where the text has no single mapping."""
    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return {}
    return dict(_walk(node, "")) if isinstance(node, yaml.MappingNode) else {}


def _walk(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, int]]:
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        yield name, key.start_mark.line + 1
        if isinstance(value, yaml.MappingNode):
            yield from _walk(value, f"{name}.")


def toml_lines(text: str) -> dict[str, int]:
    """Line of every dotted key of TOML text."""
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _SECTION.match(line):
            section = match.group(1).replace(" ", "") + "."
        elif match := _ASSIGNMENT.match(line):
            found.setdefault(section + match.group(1), number)
    return found
