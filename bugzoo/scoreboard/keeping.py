"""Captured runs of the collection kept on disk, so that they can be judged again without running a program.

Below the folder: ``references/BASE/{values,sketches,alone}`` with their noise profiles, and
``entries/NAME/{values,sketches,replay,gradients}``; ``kept.json``, the answer of ``diagnose --replay`` at the
time, stands in each entry's folder that is complete.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bugzoo.bases import bases
from bugzoo.entries import Entry, entries
from bugzoo.scoreboard import commands
from bugzoo.scoreboard.answers import FAILED
from bugzoo.scoreboard.commands import CommandFailed
from bugzoo.scoreboard.runs import Runs, What, write

SAMPLE = 60
"""entries that between them show every base, stage, kind, dtype, part and axis of the collection"""
_DONE = "kept.json"
_MADE = ("replay", "gradients")


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What there is of one entry on disk."""

    entry: Entry
    folder: Path
    reference: Path

    @property
    def alone(self) -> Path | None:
        """The reference in one process, None where the base has none."""
        folder = self.reference / "alone"
        return folder if folder.is_dir() else None

    @property
    def replays(self) -> dict[str, Path]:
        """``replay`` and ``gradients`` as far as the program left a step in them."""
        folders = {name: self.folder / name for name in _MADE}
        return {name: path for name, path in folders.items() if path.is_dir()}


def keep(chosen: Iterable[Entry], folder: Path) -> Iterator[str]:
    """Capture, replay and keep every entry that is not there yet; a line an entry."""
    runs = Runs(folder, What(), is_kept=True)
    for entry in chosen:
        if (folder / "entries" / entry.name / _DONE).exists():
            continue
        began = time.perf_counter()
        try:
            _keep_one(runs, entry, folder / "entries" / entry.name)
            ended = "kept"
        except CommandFailed as error:
            ended = f"{FAILED}: {str(error)[-300:]}"
        yield f"{entry.name} ({entry.base}; {time.perf_counter() - began:.1f} s)  {ended}"


def kept(folder: Path, chosen: Iterable[Entry]) -> list[Kept]:
    """Those of the chosen entries that are complete in a folder."""
    found = []
    for entry in chosen:
        place = folder / "entries" / entry.name
        if (place / _DONE).exists():
            found.append(Kept(entry=entry, folder=place, reference=folder / "references" / entry.base))
    return found


def _keep_one(runs: Runs, entry: Entry, folder: Path) -> None:
    """Both captures, and the two replays that ``diagnose --replay`` makes on its way."""
    reference = runs.reference(entry.base)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    program = replace(reference.program, entry=entry)
    values, out = folder / "values", folder / "diagnosis"
    commands.capture(program, values, values=True)
    commands.capture(program, folder / "sketches", values=False)
    answer = commands.diagnose(values, reference.values, out, program)
    if answer.state == FAILED:
        raise CommandFailed(answer.note)
    for name in _MADE:
        if (out / name / "manifest.json").exists():
            (out / name).rename(folder / name)
    shutil.rmtree(out)
    write(folder / _DONE, answer.to_json())


def in_order(chosen: Iterable[Entry]) -> list[Entry]:
    """The sample first, then the rest; of each, programs together."""
    first = sample()
    return sorted(chosen, key=lambda entry: (entry.name not in first, entry.base))


def sample(size: int = SAMPLE) -> frozenset[str]:
    """Names of the entries that are most unlike each other, always the same."""
    left, seen, taken = list(entries().values()), set[Any](), list[str]()
    while left and len(taken) < size:
        best = max(left, key=lambda entry: len(_features(entry) - seen))  # the first of equals
        left.remove(best)
        taken.append(best.name)
        seen |= _features(best)
    return frozenset(taken)


def _features(entry: Entry) -> set[Any]:
    base = bases()[entry.base]
    return {
        ("base", entry.base),
        ("control", entry.base, entry.is_benign),
        ("part", entry.part, entry.stage),
        ("precision", entry.precision, entry.stage),
        ("processes", base.ranks, entry.stage),
        ("reduction", base.reduction, entry.stage),
        ("kind", *entry.kinds[:1]),
        ("whose", *(entry.axes or ())),
        ("ranks", entry.ranks is not None),
        ("step", entry.step),
    }
