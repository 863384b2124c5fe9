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

from trueup.capture.observer import WatchedRun
from trueup.monitoring.alarms import SUBJECTS, Alarm, Subject
from trueup.store import layout
from trueup.store.writer import write_json
from trueup.types.codes import MonitorCode
from trueup.types.reason import reason
from trueup.types.trace import ScalarLine

VERSION = 1
EVENT = "TRUEUP_EVENT"
"""environment variable that gives a command the path of the event's file"""
_OVERFLOWS = ("nan", "overflow")


def alarm_from_subjects(rule: str, subjects: Sequence[Subject], *, step: int, rank: int) -> Alarm:
    """The alarm of one rule at one step."""
    first = subjects[0]
    sentence = reason(
        MonitorCode.ALARM,
        rule=rule,
        subject=first.name,
        value=first.value,
        threshold=first.threshold,
        unit=first.unit,
        more=len(subjects) - 1,
    )
    return Alarm(
        rule=rule,
        step=step,
        rank=rank,
        sentence=sentence,
        subjects=tuple(subjects[:SUBJECTS]),
        num_subjects=len(subjects),
        advice=reason(MonitorCode.ADVICE, rule=rule),
    )


class Events:
    """The alarms of one rank on their way out."""

    def __init__(self, run: WatchedRun, *, program: Sequence[str] = (), command: str | None = None) -> None:
        self._run = run
        self._program = tuple(program) or run.command
        self._command = command
        self._folder = layout.events_dir(run.output)

    def emit(self, alarm: Alarm, *, captured: int | None, before: Sequence[ScalarLine]) -> Path:
        """Write the file of an alarm, print it once a step and rule, start the command.

        ``captured`` is the step that will be captured in full because of it; ``before`` the scalars of the
        last steps.

        Raises:
            OSError: the file cannot be written.
        """
        from trueup.wording import document

        path = layout.event_file(self._run.output, alarm.step, alarm.rule, alarm.rank)
        is_first = not any(self._folder.glob(f"{path.name.rpartition('.rank_')[0]}.rank_*.json"))
        content = {
            "version": VERSION,
            "time": time.time(),
            **document(alarm),
            "captured_step": captured,
            "rerun": self._rerun(alarm),
            "before": list(before),
        }
        write_json(path, content)
        if is_first:
            self._print(alarm, content["sentence"], path, captured)
        self._run_command(path)
        return path

    def _print(self, alarm: Alarm, sentence: str, path: Path, captured: int | None) -> None:
        rank = f" rank {alarm.rank}" if self._run.world_size > 1 else ""
        then = "" if captured is None else f"; step {captured} is captured"
        print(
            f"trueup: ALARM step {alarm.step}{rank} {sentence} ({path}){then}",
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
