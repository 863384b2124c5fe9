"""One entry through every command; a base's reference once for all its entries."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bugzoo.bases import bases
from bugzoo.entries import Entry
from bugzoo.scoreboard import commands, curves, msprobe
from bugzoo.scoreboard.answers import FAILED, NOT_RUN, Answer
from bugzoo.scoreboard.commands import CommandFailed, CommandMissing, Program

VALUES, SKETCHES, PASSIVE, REPLAY = "compare", "compare from sketches", "diagnose", "diagnose with replay"
ACROSS = "diagnose across layouts"
"""against the same training in one process"""
MODES = (VALUES, SKETCHES, PASSIVE, REPLAY, ACROSS)
COMPLETE = "complete"
"""name of an empty file in the folder of a program or reference that was made to its end"""


@dataclass(frozen=True, kw_only=True)
class What:
    """Which parts of the work are wanted."""

    replay: bool = True
    noise: bool = True


@dataclass(kw_only=True)
class OtherReference:
    """The same for msprobe and the loss curve."""

    losses: list[str]
    msprobe: Path | None


@dataclass(kw_only=True)
class Reference:
    """What there is of one base's clean run."""

    program: Program
    values: Path
    sketches: Path
    alone: Path | None = None
    """of the same training in one process"""
    seconds: dict[str, float] = field(default_factory=dict)
    noise: str = "measured"


class Runs:
    """Runs entries in a folder; safe to use from several threads."""

    def __init__(self, folder: Path, what: What, *, is_kept: bool = False) -> None:
        """Args: a folder to work in, what is wanted, and whether complete programs and references that are
        in the folder are used again."""
        self._folder, self._what, self._is_kept = folder, what, is_kept
        self._programs: dict[str, Program] = {}
        self._references: dict[str, Reference] = {}
        self._other_references: dict[str, OtherReference] = {}
        self._locks = {name: threading.RLock() for name in bases()}

    def program(self, name: str) -> Program:
        """The clean program of a base, with what it goes on from.

        Raises:
            CommandFailed: what it goes on from could not be made.
        """
        with self._locks[name]:
            if name not in self._programs:
                self._programs[name] = self._make_program(name)
            return self._programs[name]

    def _make_program(self, name: str) -> Program:
        base, folder = bases()[name], self._folder / "programs" / name
        is_there = self._is_kept and (folder / COMPLETE).exists()
        if not is_there:
            _new(folder)
        if base.resumes_at:
            if not is_there:
                commands.make_checkpoint(base, folder / "checkpoint.pt")
            made = Program(base=base, checkpoint=folder / "checkpoint.pt")
        elif base.ported:
            if not is_there:
                commands.capture(Program(base=base), folder / "original", values=True, steps=curves.STEPS)
                commands.hand_over(folder / "original", folder / "port")
            made = Program(base=base, checkpoint=folder / "port")
        else:
            made = Program(base=base)
        (folder / COMPLETE).touch()
        return made

    def reference(self, name: str) -> Reference:
        """The clean run of a base, made when it is first asked for.

        Raises:
            CommandFailed: the clean program or a command on it failed.
        """
        with self._locks[name]:
            if name not in self._references:
                self._references[name] = self._make_reference(self.program(name))
            return self._references[name]

    def _make_reference(self, program: Program) -> Reference:
        folder = self._folder / "references" / program.base.name
        alone = folder / "alone" if program.base.alone is not None else None
        made = Reference(program=program, values=folder / "values", sketches=folder / "sketches", alone=alone)
        if not (self._is_kept and (folder / COMPLETE).exists()):
            _new(folder)
            self._capture_reference(made)
            (folder / COMPLETE).touch()
        return made

    def _capture_reference(self, made: Reference) -> None:
        program = made.program
        made.seconds["capture"] = commands.capture(program, made.values, values=True)
        commands.capture(program, made.sketches, values=False)
        if self._what.noise:
            self._measure_noise(made)
        if program.base.alone is not None and made.alone is not None:
            alone = replace(program, base=program.base.alone)
            commands.capture(alone, made.alone, values=True)
            if made.noise == "measured" and self._what.noise:
                commands.measure_noise(alone, made.alone)

    def _measure_noise(self, made: Reference) -> None:
        try:
            made.seconds["noise"] = commands.measure_noise(made.program, made.values)
            commands.measure_noise(made.program, made.sketches)
        except CommandMissing:
            made.noise = NOT_RUN
        except CommandFailed as error:
            made.noise = f"{FAILED}: {error}"[-600:]

    def entry(self, entry: Entry) -> dict[str, Any]:
        """Every answer to one entry, as plain values."""
        began = time.perf_counter()
        said: dict[str, Any] = {"entry": entry.name}
        folder = _new(self._folder / "entries" / entry.name)
        try:
            reference = self.reference(entry.base)
            said |= self._answers(entry, reference, folder)
        except CommandFailed as error:
            failed = Answer(state=FAILED, note=str(error)[-1500:]).to_json()
            said["answers"] = dict.fromkeys(MODES, failed)
        shutil.rmtree(folder, ignore_errors=True)
        said["seconds"] = round(time.perf_counter() - began, 1)
        return said

    def _answers(self, entry: Entry, reference: Reference, folder: Path) -> dict[str, Any]:
        program = replace(reference.program, entry=entry)
        values, sketches = folder / "values", folder / "sketches"
        capture_seconds = commands.capture(program, values, values=True)
        commands.capture(program, sketches, values=False)
        answers = {
            VALUES: commands.compare(values, reference.values),
            SKETCHES: commands.compare(sketches, reference.sketches),
            PASSIVE: commands.diagnose(values, reference.values, folder / "passive"),
        }
        if self._what.replay:
            answers[REPLAY] = commands.diagnose(values, reference.values, folder / "replayed", program)
        if reference.alone is not None:
            answers[ACROSS] = commands.diagnose(values, reference.alone, folder / "across")
        said: dict[str, Any] = {
            "answers": {mode: answer.to_json() for mode, answer in answers.items()},
            "noise": reference.noise if self._what.noise else NOT_RUN,
            "reference_seconds": reference.seconds,
            "capture_seconds": round(capture_seconds, 2),
            "is_warm": sys.executable != commands.PYTHON,
        }
        return said

    def others(self, entry: Entry) -> dict[str, Any]:
        """What msprobe and the loss curve say of an entry, trueup has no part in it, as plain values."""
        began = time.perf_counter()
        folder = _new(self._folder / "others" / entry.name)
        said: dict[str, Any] = {"entry": entry.name}
        try:
            reference = self._other_reference(entry.base)
            planted = replace(self.program(entry.base), entry=entry)
            said["curves"] = curves.compare_losses(curves.losses(planted), reference.losses).to_json()
            if reference.msprobe is not None:
                said["msprobe"] = msprobe.answer(planted, reference.msprobe, folder).to_json()
        except CommandFailed as error:
            said["failed"] = str(error)[-1500:]
        shutil.rmtree(folder, ignore_errors=True)
        said["seconds"] = round(time.perf_counter() - began, 1)
        return said

    def _other_reference(self, name: str) -> OtherReference:
        with self._locks[name]:
            if name not in self._other_references:
                program = self.program(name)
                made = OtherReference(losses=curves.losses(program), msprobe=None)
                if msprobe.home() is not None and not program.base.is_on_mindspore:
                    made.msprobe = _new(self._folder / "msprobe" / name)
                    msprobe.capture(program, made.msprobe)
                self._other_references[name] = made
            return self._other_references[name]


def _new(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def write(path: Path, said: dict[str, Any]) -> None:
    """Write one entry's answers by one rename: an interrupted run leaves none half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".writing")
    temporary.write_text(json.dumps(said, indent=1), encoding="utf-8")
    temporary.replace(path)
