"""The public part: every entry with its link, its place, and its cause as facts that a verdict must state.

Read from the YAML files in ``planted/``, beside the code that plants them. A quarter, chosen by a hash of the
name, was blind: nobody looked at what is said of it before 27 November 2026. It is counted apart still
(``zoo.py --part blind --blind``).
"""

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

if TYPE_CHECKING:
    from bugzoo.public.run import Run

FOLDER = Path(__file__).resolve().parent / "planted"
PUBLIC, BLIND = "public", "blind"
TWO = ("-ddp", "-fsdp")
"""ends of names of programs that run in two processes"""
LOW = ("-bf16", "-master", "llama-fsdp")
"""ends of names of programs that compute in bfloat16"""
_SALT = "trueup public collection"
Plant = Callable[["Run"], None]
_PLANTS: dict[str, Plant] = {}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a verdict must state, all of it: in reasons of its first finding, never in prose."""

    kinds: list[str] = field(default_factory=list)
    """the first kind is one of these"""
    codes: list[str] = field(default_factory=list)
    """patterns of codes: a reason has one"""
    names: list[str] = field(default_factory=list)
    """one of these identifiers stands in a reason (an argument, a setting, a tensor; any case)"""
    values: list[float | str | None] = field(default_factory=list)
    """all of these stand in reasons: numbers within a hundredth, words as they are"""


@dataclass(frozen=True, kw_only=True)
class PublicEntry:
    """One mistake, or a change that is none."""

    name: str
    base: str
    """name of a program"""
    summary: str
    link: str
    """where it was reported; ``unconfirmed: REPOSITORY, TITLE`` where the page was not seen"""
    group: str
    stage: str | None = None
    """of the place; None: no fault"""
    also_stages: list[str] = field(default_factory=list)
    sites: list[str] | None = None
    """patterns of module or weight names that are right; None: the stage alone says where"""
    kinds: list[str] = field(default_factory=list)
    """names of kinds that are right, best first"""
    cause: str | None = None
    """the expected cause, in the words of ``CAUSES``"""
    full: list[Facts] = field(default_factory=list)
    """any of these says it all"""
    partial: list[Facts] = field(default_factory=list)
    """any of these says a part of it; the right place does too"""
    true_settings: list[str] = field(default_factory=list)
    """settings and arguments that do differ between the runs, whatever their part in it"""
    step: int = 0
    """the first step that differs"""
    target_processes: int | None = None
    """of a benign entry whose target runs in another number of processes than its reference"""

    @property
    def is_benign(self) -> bool:
        """Whether it is no fault."""
        return self.stage is None

    @property
    def part(self) -> str:
        """By a hash of the name."""
        return BLIND if hashlib.sha256(f"{_SALT}: {self.name}".encode()).digest()[0] % 4 == 0 else PUBLIC

    @property
    def processes(self) -> int:
        """How many its program runs in."""
        return 2 if self.base.endswith(TWO) else 1

    @property
    def dtype(self) -> str:
        """Of the computation: by the program's name, float32 where it says nothing."""
        name = self.base
        return "fp16" if name.endswith("-fp16") else "bf16" if name.endswith(LOW) else "fp32"

    @property
    def family(self) -> str:
        """Model family: the program's name to the first hyphen."""
        return self.base.partition("-")[0]

    def is_site(self, name: str | None) -> bool:
        """Whether a module or weight is the one."""
        if self.sites is None:
            return True
        if name is None:
            return False
        owner = name.removesuffix(".weight").removesuffix(".bias")
        return any(fnmatchcase(given, site) for site in self.sites for given in (name, owner))


CAUSES = {
    "setting": "a setting or argument has another value",
    "dtype": "computed, stored or exchanged in another dtype",
    "divisor": "a loss or gradient is divided by another number",
    "input": "the model is given other inputs, or one is missing",
    "labels": "other labels count",
    "mask": "attention sees other positions",
    "order": "heads, halves or parts in another order",
    "formula": "another formula in one place",
    "term": "a term of the loss is missing or another one is there",
    "reduction": "gradients or norms are not summed over processes as they should be",
    "gradient": "a weight gets no gradient, or one that it should not",
    "update": "another rule of the optimizer",
    "tie": "tied weights are not tied",
    "weights": "other initial weights",
    "random": "random numbers are drawn that should not be",
    "stale": "something is not renewed or not cleared",
}


def change(name: str) -> Callable[[Plant], Plant]:
    """Say which entry the decorated function plants."""

    def add(function: Plant) -> Plant:
        if name in _PLANTS:
            raise ValueError(f"two functions plant {name}")
        _PLANTS[name] = function
        return function

    return add


def plants() -> dict[str, Plant]:
    """All functions that plant something; imports what they need, torch too."""
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        importlib.import_module(f"bugzoo.public.planted.{path.stem}")
    return _PLANTS


def planted(name: str) -> Plant:
    """The function that plants an entry.

    Raises:
        SystemExit: there is none of this name.
    """
    if name not in plants():
        raise SystemExit(f"{name}: no entry of the public part; expected one of {', '.join(plants())}")
    return plants()[name]


@cache
def public_entries() -> dict[str, PublicEntry]:
    """All of them by name, faults first.

    Raises:
        ValueError: two entries have one name, or a cause is none of ``CAUSES``.
    """
    found: dict[str, PublicEntry] = {}
    for path in sorted(FOLDER.glob("*.yaml"), key=lambda path: ("benign" in path.stem, path.stem)):
        for given in yaml.load(
            path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        ):
            entry = _from_plain(given)
            if entry.name in found or (entry.cause not in CAUSES and not entry.is_benign):
                raise ValueError(
                    f"{path.name}: {entry.name}: the name is taken, or its cause is none of CAUSES"
                )
            found[entry.name] = entry
    return found


def _from_plain(given: dict[str, Any]) -> PublicEntry:
    facts = {key: [Facts(**one) for one in given.get(key, [])] for key in ("full", "partial")}
    return PublicEntry(**{**given, **facts})
