"""Which framework a program trains with."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from trueup.adapters import FRAMEWORKS


def framework_in_use(model: object | None = None) -> str:
    """The framework of ``model``; without one, what the program has imported, else what is installed.

    A program that has imported both is taken for a MindSpore one: those often have torch beside them, to
    read its checkpoints.

    Example:
        >>> class Net: __module__ = "mindspore.nn.cell"
        >>> framework_in_use(Net())
        'mindspore'
    """
    for one in model if isinstance(model, (list, tuple)) else [model]:
        for kind in type(one).__mro__:
            home = kind.__module__.partition(".")[0]
            if home in FRAMEWORKS:
                return home
    imported = [name for name in reversed(FRAMEWORKS) if name in sys.modules]
    installed = (name for name in FRAMEWORKS if find_spec(name) is not None)
    return imported[0] if imported else next(installed, FRAMEWORKS[0])


def frameworks_imported() -> list[str]:
    """Every framework the program has imported; the one installed where it has imported none yet."""
    return [name for name in FRAMEWORKS if name in sys.modules] or [framework_in_use()]
