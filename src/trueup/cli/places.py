"""Whether something can be written at a place that a person named, asked before the work is done."""

from __future__ import annotations

import os
from pathlib import Path


def unwritable(path: Path, *, folder: bool) -> str | None:
    """What was expected in the place of ``path``, where nothing can be written there; None where it can.

    Args:
        path: what ``-o`` names.
        folder: a folder is made there, with parents; else one file.
    """
    try:
        if path.is_symlink() and not path.exists():
            return f"a place to write (got {path}, a link to {os.readlink(path)}, which is not there)"
        if path.exists() and path.is_dir() is not folder:
            what = "a folder, or a name for a new one" if folder else "the name of a file"
            return f"{what} (got {path}, which is {_kind(path)})"
        there = next(one for one in (path, *path.absolute().parents) if one.exists())
    except (OSError, ValueError) as error:
        return f"a name that can be written (got {str(path)[:60]!r}: {getattr(error, 'strerror', error)})"
    if there != path and not there.is_dir():
        return f"a place in a folder (got {path}; {there} is {_kind(there)})"
    if not os.access(there, os.W_OK | (os.X_OK if there.is_dir() else 0)):
        return f"a place that can be written (got {path}; {there} is read-only for this user)"
    return None


def _kind(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    return "a file" if path.is_file() else "a device"
