"""Framework adapters. ``load`` is the one dynamic import: nothing else in trueup imports a framework."""

from __future__ import annotations

import importlib
from types import ModuleType

from trueup.errors import ConfigError

FRAMEWORKS = ("torch", "mindspore")


def load(framework: str) -> ModuleType:
    """The adapter package of ``framework``.

    Raises:
        ConfigError: no such adapter.
    """
    if framework not in FRAMEWORKS:
        raise ConfigError(f"no adapter for {framework!r}; there is {', '.join(FRAMEWORKS)}")
    importlib.import_module(framework)  # whole first: a capture from outside begins right after it
    return importlib.import_module(f"trueup.adapters.{framework}")
