"""``import msprobe`` in programs that know no other tool: trueup under its name, where a person asks.

One file of paths in an environment's folder of packages leads there. Python looks at such paths last: a real
msprobe is found first, whenever it is installed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import trueup
from trueup.errors import ConfigError

_FOLDER = Path(trueup.__file__).parent / "aliases"


def alias_file(name: str, packages: Path) -> Path:
    """The file that makes the alias, in a folder of packages (``site-packages``)."""
    return packages / f"trueup-{name}.pth"


def add_alias(name: str, packages: Path) -> Path:
    """Have programs of an environment find trueup under ``name``; what was written.

    Raises:
        ConfigError: the tool itself is installed there.
        OSError: the folder cannot be written.
    """
    real = packages / name
    found = None if real.exists() else importlib.util.find_spec(name)
    if found is not None and found.origin is not None and not Path(found.origin).is_relative_to(_FOLDER):
        real = Path(found.origin).parent
    if real.exists():
        raise ConfigError(f"{name} is installed in {real}: programs import that one. Uninstall it first.")
    file = alias_file(name, packages)
    file.write_text(f"{_FOLDER}\n", encoding="utf-8")
    return file


def remove_alias(name: str, packages: Path) -> Path:
    """Undo ``add_alias``.

    Raises:
        ConfigError: there is no such alias.
    """
    file = alias_file(name, packages)
    if not file.exists():
        raise ConfigError(f"{file} is not there: no alias of {name} in this environment")
    file.unlink()
    return file
