"""What frameworks above PyTorch know and capture cannot see: phases, roles, steps, log-probs of tokens.

One module a framework. It wraps functions of the framework after their module has been imported; no file of
the framework is changed, and nothing happens unless capture is on.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

from trueup.capture.shield import shielded

Action = Callable[[ModuleType], None]
SUPPORTED = ("verl", "trl")
"""modules of this package"""


def watch_all() -> None:
    """Wait for every supported framework."""
    for name in SUPPORTED:
        importlib.import_module(f"{__name__}.{name}").watch()


class Watcher:
    """First on ``sys.meta_path``: acts on modules when they have been imported."""

    def __init__(self) -> None:
        self._actions: dict[str, Action] = {}

    def when_imported(self, name: str, action: Action) -> None:
        """Call ``action`` with the module once it is imported; now where it already is. Once a module."""
        if name in self._actions:
            return
        self._actions[name] = shielded(action)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        if name in sys.modules:
            self._actions[name](sys.modules[name])

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have, its loader acting at the end."""
        if name not in self._actions:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._actions[name])  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """A module's loader; steps aside before the module can see it, and acts when the module is whole."""

    def __init__(self, loader: Loader, action: Action) -> None:
        self._loader = loader
        self._action = action

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action(module)
