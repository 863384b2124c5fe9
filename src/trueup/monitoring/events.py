"""What an alarm leaves: a line, a file, a command that is started."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trueup.capture.observer import WatchedRun
from trueup.monitoring.alarms import SUBJECTS, Alarm, Subject
from trueup.store import layout
from trueup.store.writer import write_json

VERSION = 1
EVENT = "TRUEUP_EVENT"
"""environment variable that gives a command the path of the event's file"""
_SAID = {"loss": "loss", "grad_norm": "gradient norm"}
_OVERFLOWS = ("nan", "overflow")


def alarm_from_subjects(
    rule: str, advice: str, subjects: Sequence[Subject], *, step: int, rank: int
) -> Alarm:
    """The alarm of one rule at one step."""
    first = subjects[0]
    unit = f" {first.unit}" if first.unit else ""
    value = "" if first.value is None else f" {first.value:.6g}{unit}"
    bound = "" if first.threshold is None else f", bound {first.threshold:.6g}"
    more = f", and {len(subjects) - 1} more" if len(subjects) > 1 else ""
    return Alarm(
        rule=rule,
        step=step,
        rank=rank,
        sentence=f"{rule.replace('_', ' ')}: {_SAID.get(first.name, first.name)}{value}{bound}{more}",
        subjects=tuple(subjects[:SUBJECTS]),
        num_subjects=len(subjects),
        advice=advice,
    )


class Events:
    """The alarms of one rank on their way out."""

    def __init__(self, run: WatchedRun, *, program: Sequence[str] = (), command: str | None = None) -> None:
        self._run = run
        self._program = tuple(program) or run.command
        self._command = command
        self._folder = layout.events_dir(run.output)

    def emit(self, alarm: Alarm, *, captured: int | None, before: Sequence[dict[str, Any]]) -> Path:
        """Write the file of an alarm, say it once a step and rule, start the command.

        ``captured`` is the step that will be captured in full because of it; ``before`` the scalars of the
        last steps.

        Raises:
            OSError: the file cannot be written.
        """
        path = layout.event_file(self._run.output, alarm.step, alarm.rule, alarm.rank)
        alone = not any(self._folder.glob(f"{path.name.rpartition('.rank_')[0]}.rank_*.json"))
        content = {
            "version": VERSION,
            "time": time.time(),
            **alarm.to_json(),
            "captured_step": captured,
            "rerun": self._rerun(alarm),
            "before": list(before),
        }
        write_json(path, content)
        if alone:
            self._say(alarm, path, captured)
        self._run_command(path)
        return path

    def _say(self, alarm: Alarm, path: Path, captured: int | None) -> None:
        rank = f" rank {alarm.rank}" if self._run.world_size > 1 else ""
        then = "" if captured is None else f"; step {captured} is captured"
        print(
            f"trueup: ALARM step {alarm.step}{rank} {alarm.sentence} ({path}){then}",
            file=sys.stderr,
            flush=True,
        )

    def _rerun(self, alarm: Alarm) -> str:
        """The command that captures this very step of the same program."""
        task = " --task overflow_check" if alarm.rule in _OVERFLOWS else f" --steps {alarm.step}"
        output = shlex.quote(f"{self._run.output}-step-{alarm.step}")
        return f"trueup capture -o {output}{task} -- {shlex.join(self._program)}"

    def _run_command(self, path: Path) -> None:
        if self._command is None:
            return
        environment = {k: v for k, v in os.environ.items() if k != "TRUEUP_CAPTURE"}
        process = subprocess.Popen(
            self._command,
            shell=True,
            env={**environment, EVENT: str(path)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        threading.Thread(target=process.wait, daemon=True).start()
