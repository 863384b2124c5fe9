"""The table of what seeds a framework and makes it deterministic, and the doing of it."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).with_name("seeding.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedingStep:
    """One thing to do; exactly one of ``call``, ``set`` and ``environment`` is there."""

    why: str
    call: str | None = None
    given: str = "seed"
    """what a call gets: ``seed`` or ``mode``"""
    set: str | None = None
    environment: str | None = None
    to: object = None
    """value of an attribute (``mode``: what was asked for) or a variable (``{seed}``: the seed)"""
    needs: str | None = None
    """only where the framework has this"""
    always: bool = False
    """a variable that is replaced, also if it was set"""
    mode_only: bool = False
    """nothing to do where determinism is taken back"""
    by_adapter: bool = False
    """printed as it is, done by the adapter, which remembers what to take back"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything for one framework, or for Python itself."""

    imports: tuple[str, ...]
    seed: tuple[SeedingStep, ...] = ()
    cudnn: tuple[SeedingStep, ...] = ()
    deterministic: tuple[SeedingStep, ...] = ()
    by_hand: tuple[SeedingStep, ...] = ()
    """worth setting and never set here"""


@functools.cache
def recipe(framework: str) -> Recipe:
    """The recipe of ``python``, ``torch`` or ``mindspore``."""
    content = yaml.safe_load(_FILE.read_text(encoding="utf-8"))[framework]
    steps = {name: tuple(SeedingStep(**step) for step in content.get(name, ())) for name in _GROUPS}
    return Recipe(imports=tuple(content["imports"]), **steps)


_GROUPS = ("seed", "cudnn", "deterministic", "by_hand")


def run(steps: Sequence[SeedingStep], *, seed: int | None = None, mode: bool = True) -> None:
    """Do what the steps say, in this process; one whose framework lacks what it needs is passed over."""
    for step in steps:
        if step.by_adapter or (step.mode_only and not mode) or (step.needs and _found(step.needs) is None):
            continue
        if step.call is not None:
            _found(step.call)(seed if step.given == "seed" else mode)
        elif step.set is not None:
            home, _, name = step.set.rpartition(".")
            setattr(_found(home), name, value_of(step, mode=mode))
        elif step.environment is not None:
            value = str(step.to).format(seed=seed)
            if step.always:
                os.environ[step.environment] = value
            else:
                os.environ.setdefault(step.environment, value)


def value_of(step: SeedingStep, *, mode: bool) -> object:
    """What an attribute is set to."""
    return mode if step.to == "mode" else step.to


def _found(path: str) -> Any:
    """What a dotted name means, None where a part is not there."""
    first, *rest = path.split(".")
    value: Any = importlib.import_module(first)
    for name in rest:
        value = getattr(value, name, None)
    return value
