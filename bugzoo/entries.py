"""The collection: every entry's expected finding, read from the YAML files beside the code that plants it."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bugzoo.bases import bases

if TYPE_CHECKING:
    from bugzoo.trainer import Trainer

FOLDER = Path(__file__).resolve().parent / "planted"
TUNING, HELD_OUT = "tuning", "held-out"
_SALT = "trueup fault collection"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One planted fault, or a change that is none, and what a diagnosis of it should say."""

    name: str
    base: str
    summary: str
    group: str
    """fault class: entries of one group are the same mistake, perhaps in another program"""
    stage: str | None = None
    """``trueup.types.Stage`` value; None: no fault"""
    also_stages: list[str] = field(default_factory=list)
    """stages that are right too, where the guide treats two as one"""
    sites: list[str] | None = None
    """patterns of module or weight names that are right, best first; None: the stage alone says where"""
    kinds: list[str] = field(default_factory=list)
    """names of kinds that are right, best first"""
    family: str | None = None
    """``model`` or ``numerical``"""
    axes: list[str] | None = None
    """names of the axis of the mesh along which processes do not agree as they should, the best first; empty:
    none, every process errs alike; None: not asked"""
    ranks: list[int] | None = None
    """the only processes that err; None: not some alone"""
    step: int = 0
    """the first step, counted from the program's start, in which anything differs"""
    code: str | None = None
    """function that plants it, where several entries share one; by default the name's"""
    arguments: dict[str, Any] = field(default_factory=dict)
    threads: int = 1

    @property
    def is_benign(self) -> bool:
        """Whether it is no fault."""
        return self.stage is None

    @property
    def precision(self) -> str:
        """The base's."""
        return bases()[self.base].precision

    @property
    def part(self) -> str:
        """Which part of the collection it is in (docs/decisions/0006-two-parts-of-the-collection.md)."""
        return HELD_OUT if _is_held_out(self.group) or _is_held_out(self.base) else TUNING

    def plant(self, trainer: Trainer) -> None:
        """Change the one thing."""
        plants()[self.code or self.name](trainer, **self.arguments)

    def is_site(self, name: str | None) -> bool:
        """Whether a module or weight is the one; where none owns the fault, any is, and none."""
        if self.sites is None:
            return True
        if name is None:
            return False
        owner = name.removesuffix(".weight").removesuffix(".bias")
        return any(fnmatchcase(given, site) for site in self.sites for given in (name, owner))


Plant = Callable[..., None]
_PLANTS: dict[str, Plant] = {}


def plant(name: str) -> Callable[[Plant], Plant]:
    """Say which entry (or ``code`` of entries) the decorated function plants."""

    def add(function: Plant) -> Plant:
        if name in _PLANTS:
            raise ValueError(f"two functions plant {name}")
        _PLANTS[name] = function
        return function

    return add


def planted_by(name: str) -> Plant:
    """The function that plants an entry, of those that are imported.

    Raises:
        SystemExit: there is no such entry, or it is planted into another program.
    """
    entry = entries().get(name)
    code = None if entry is None else entry.code or entry.name
    if code not in _PLANTS:
        raise SystemExit(f"{name}: not an entry of this program; one of {', '.join(_PLANTS)}")
    return _PLANTS[code]


def plants() -> dict[str, Plant]:
    """All functions that plant something; imports what they need, torch too."""
    for path in sorted(FOLDER.glob("*.py")):
        importlib.import_module(f"bugzoo.planted.{path.stem}")
    return _PLANTS


@cache
def entries() -> dict[str, Entry]:
    """The whole collection by name, faults first.

    Raises:
        ValueError: two entries have one name, or an entry names a base there is not.
    """
    found: dict[str, Entry] = {}
    for path in sorted(FOLDER.glob("*.yaml"), key=lambda path: (path.stem == "benign", path.stem)):
        for given in yaml.load(
            path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        ):
            entry = Entry(**given)
            if entry.name in found or entry.base not in bases():
                raise ValueError(f"{path.name}: {entry.name}: the name is taken, or there is no such base")
            found[entry.name] = entry
    return found


def _is_held_out(word: str) -> bool:
    return hashlib.sha256(f"{_SALT}: {word}".encode()).digest()[0] % 4 == 0
