"""Traces of one job by what its processes are for: an actor, and a critic in processes of its own.

Which of several process groups keeps the folder of the run and which write below ``processes/`` is a matter
of who came first; what a trace is of, its phases say, else the name of its folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trueup.store.files import text_from_file
from trueup.store.layout import MANIFEST, other_traces, scalars_file
from trueup.store.layout import ranks as ranks_in
from trueup.store.reader import scalar_line
from trueup.types.trace import ScalarLine

_HASH = re.compile(r"-[0-9a-f]{8}(-rank\d+-.*)?$")


def traces_by_role(run: Path) -> dict[str, Path]:
    """Role -> trace; the run itself under the empty name where nothing says what it is of. Several of one
    role are numbered."""
    found: dict[str, Path] = {}
    for folder in [*([run] if (run / MANIFEST).is_file() else []), *other_traces(run)]:
        role = " and ".join(sorted(set(_roles(folder)))) or _role_of_folder(folder, run)
        number = sum(name.partition(" #")[0] == role for name in found)
        found[f"{role} #{number + 1}" if number else role] = folder
    return found


def _role_of_folder(folder: Path, run: Path) -> str:
    return "" if folder == run else _HASH.sub("", folder.name)


def _roles(folder: Path) -> Iterator[str]:
    """Of the phases of a trace's first rank."""
    file = scalars_file(folder, min(ranks_in(folder), default=0))
    with suppress(OSError, ValueError):
        for number, line in enumerate(text_from_file(file).splitlines(), 1):
            held = scalar_line(line, f"{file}, line {number},") or ScalarLine()
            yield from (str(phase["role"]) for phase in held.get("phases") or () if "role" in phase)
