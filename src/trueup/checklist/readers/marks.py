"""Lines of keys in YAML, JSON and TOML, so that every value can be shown with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

Place = tuple[str | int, ...]
_REPEATED = re.compile(r"[\s\[,]\*[\w.-]")
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


def yaml_aliases(text: str) -> tuple[tuple[Place, ...], ...]:
    """Places of single values that the file writes once and repeats: ``num_layers: &n 61`` and ``*n``.

    A place is its keys and positions from the top; every group has two or more. A mapping or list that is
    repeated is one object of the data, and its values have one place. Empty where the text is no YAML.
    """
    if not _REPEATED.search(text):
        return ()
    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return ()
    found: dict[int, list[Place]] = {}
    _gather(root, (), found, set())
    return tuple(tuple(places) for places in found.values() if len(places) > 1)


def _gather(node: yaml.Node | None, place: Place, found: dict[int, list[Place]], seen: set[int]) -> None:
    """The places of every single value below a node, each mapping and list gone through once."""
    if isinstance(node, yaml.ScalarNode):
        found.setdefault(id(node), []).append(place)
    elif node is not None and id(node) not in seen:
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                _gather(value, (*place, str(key.value)), found, seen)
        elif isinstance(node, yaml.SequenceNode):
            for at, value in enumerate(node.value):
                _gather(value, (*place, at), found, seen)
