"""Pairs a person gives: written by ``trueup match -o``, edited, given back with ``--map``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trueup.errors import ConfigError
from trueup.matching.msprobe_maps import MsprobePairs, read_msprobe_pairs

VERSION = 1
ROOT = "(root)"
"""how the module with the empty name is written"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePairs:
    """Target name -> reference name; a weight may be made of several. Null: it has no counterpart."""

    modules: Mapping[str, str | None] = field(default_factory=dict)
    weights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    calls: Mapping[str, str | None] = field(default_factory=dict)
    """sites of API calls: ``layers.0.attn · torch.matmul[1]``"""
    path: Path | None = None
    """the file it was read from, for messages"""
    msprobe: MsprobePairs | None = None
    """of a mapping file of msprobe, whose names only a step tells"""


def read_mapping(path: Path) -> NamePairs:
    """A map from its file, or a mapping file of msprobe.

    Raises:
        ConfigError: no such file, not YAML, or of another form; the message names the place.
    """
    import yaml

    try:
        held = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--map {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"--map {path} is not YAML: {' '.join(str(error).split())}") from error
    if (pairs := read_msprobe_pairs(held)) is not None:
        return NamePairs(path=path, msprobe=pairs)
    if not isinstance(held, dict) or held.get("version", VERSION) != VERSION:
        raise ConfigError(f"--map {path}: expected version: {VERSION} with modules, weights and calls")
    unknown = sorted(set(held) - {"version", "modules", "weights", "calls", "unmatched", "unsure"})
    if unknown:
        raise ConfigError(f"--map {path}: {unknown[0]} is not known; modules, weights and calls are")
    sections = {name: _section(path, name, held.get(name)) for name in ("modules", "weights", "calls")}
    named = {name: _names(path, name, sections[name]) for name in ("modules", "calls")}
    weights = {key: _several(path, key, value) for key, value in sections["weights"].items()}
    modules = {_name(one): None if two is None else _name(two) for one, two in named["modules"].items()}
    return NamePairs(modules=modules, weights=weights, calls=named["calls"], path=path)


def _name(shown: str) -> str:
    return "" if shown == ROOT else shown


def _section(path: Path, name: str, held: object) -> dict[str, object]:
    if held is None:
        return {}
    if not isinstance(held, dict):
        raise ConfigError(f"--map {path}: {name}: expected `target name: reference name` lines")
    return {str(key): value for key, value in held.items()}


def _names(path: Path, name: str, section: dict[str, object]) -> dict[str, str | None]:
    names: dict[str, str | None] = {}
    for key, value in section.items():
        if not (value is None or isinstance(value, str)):
            raise ConfigError(f"--map {path}: {name}: {key}: expected one name or null, not {value!r}")
        names[key] = value
    return names


def _several(path: Path, key: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ConfigError(f"--map {path}: weights: {key}: expected a name or a list of names")
    return tuple(names)
