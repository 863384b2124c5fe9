"""One entry through every command; a base's reference once for all its entries."""

from __future__ import annotations

import json
import shutil
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
MODES = (VALUES, SKETCHES, PASSIVE, REPLAY)


@dataclass(frozen=True, kw_only=True)
class What:
    """Which parts of the work are wanted."""

    replay: bool = True
    noise: bool = True
    others: bool = True
    """msprobe and the loss curves"""


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
    others: OtherReference | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    noise: str = "measured"


class Runs:
    """Runs entries in a folder; safe to use from several threads."""

    def __init__(self, folder: Path, what: What, others: Path) -> None:
        """Args: a folder to work in, what is wanted, and where what others say is kept from run to run."""
        self._folder, self._what, self._others = folder, what, others
        self._references: dict[str, Reference] = {}
        self._locks = {name: threading.Lock() for name in bases()}

    def reference(self, base: str) -> Reference:
        """The clean run of a base, made when it is first asked for.

        Raises:
            CommandFailed: the clean program or a command on it failed.
        """
        with self._locks[base]:
            if base not in self._references:
                self._references[base] = self._make_reference(base)
            return self._references[base]

    def _make_reference(self, name: str) -> Reference:
        base, folder = bases()[name], self._folder / "references" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        checkpoint = None
        if base.resumes_at:
            checkpoint = folder / "checkpoint.pt"
            commands.make_checkpoint(base, checkpoint)
        program = Program(base=base, checkpoint=checkpoint)
        made = Reference(program=program, values=folder / "values", sketches=folder / "sketches")
        made.seconds["capture"] = commands.capture(program, made.values, values=True)
        commands.capture(program, made.sketches, values=False)
        if base.ported:
            commands.hand_over(made.values, folder / "port")
            made.program = replace(program, checkpoint=folder / "port")
        if self._what.noise:
            self._measure_noise(made)
        return made

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
        folder = self._folder / "entries" / entry.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
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
        program = Program(base=reference.program.base, entry=entry, checkpoint=reference.program.checkpoint)
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
        said: dict[str, Any] = {
            "answers": {mode: answer.to_json() for mode, answer in answers.items()},
            "noise": reference.noise if self._what.noise else NOT_RUN,
            "reference_seconds": reference.seconds,
            "capture_seconds": round(capture_seconds, 2),
        }
        if self._what.others:
            said |= self._said_by_others(program, reference, folder)
        return said

    def _said_by_others(self, program: Program, reference: Reference, folder: Path) -> dict[str, Any]:
        """What msprobe and the loss curve say of an entry; asked once, because trueup has no part in it."""
        assert program.entry is not None
        kept = self._others / f"{program.entry.name}.json"
        if not kept.exists():
            theirs = self._other_reference(reference)
            said = {"curves": curves.compare_losses(curves.losses(program), theirs.losses).to_json()}
            if theirs.msprobe is not None:
                said["msprobe"] = msprobe.answer(program, theirs.msprobe, folder).to_json()
            write(kept, said)
        found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return found

    def _other_reference(self, reference: Reference) -> OtherReference:
        program, folder = reference.program, reference.values.parent
        with self._locks[program.base.name]:
            if reference.others is None:
                made = OtherReference(losses=curves.losses(program), msprobe=None)
                if msprobe.home() is not None and not program.base.ported:
                    made.msprobe = folder / "msprobe"
                    msprobe.capture(program, made.msprobe)
                reference.others = made
            return reference.others


def write(path: Path, said: dict[str, Any]) -> None:
    """Write one entry's answers by one rename: an interrupted run leaves none half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".writing")
    temporary.write_text(json.dumps(said, indent=1), encoding="utf-8")
    temporary.replace(path)
