"""Whether something can be written at a place that a person named, asked before the work is done."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trueup.store.layout import is_part_of_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlace:
    """A path that a person gave, and what it was given to."""

    place: str
    """the option or argument"""
    path: Path

    @property
    def shown(self) -> str:
        """For an error."""
        return f"{self.path}, which is {self.place}"


def written_into_read(
    written: Sequence[NamedPlace], read: Sequence[NamedPlace], *, overwrite: bool
) -> str | None:
    """A sentence where a command would write into what it reads; None where all is apart.

    A folder below a trace is apart from it unless it lies in the trace's own steps and scalars; so is one
    above a trace, unless ``overwrite`` removes a trace there that holds what is read. A file that is read
    first and then replaced, as ``overwrite`` says, is no mistake.
    """
    for number, one in enumerate(written):
        output = one.path.resolve()
        for other in written[:number]:
            if other.path.resolve() == output:
                return f"{one.place}: expected another place than {other.place} (got {one.path} for both)"
        for source in read:
            path = source.path.resolve()
            if output == path and not (overwrite and path.is_file()):
                what = "folder of its own" if path.is_dir() else "file of its own"
                return f"{one.place}: expected a {what} (got {source.shown}, and is only read)"
            if is_part_of_trace(output, path):
                return (
                    f"{one.place}: expected a place outside the trace (got {one.path}, inside {source.shown})"
                )
            if overwrite and is_part_of_trace(path, output):
                return (
                    f"--overwrite would remove {source.shown}: it is a part of the trace in {one.path}; "
                    f"expected another folder for {one.place}"
                )
    return None


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
