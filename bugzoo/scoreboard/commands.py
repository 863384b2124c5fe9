"""trueup's public commands on one base program, each in a process of its own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bugzoo.bases import Base, command
from bugzoo.entries import Entry
from bugzoo.scoreboard.answers import FAILED, NOT_RUN, Answer, from_compare, from_diagnose

PYTHON = os.environ.get("WARM_PYTHON", sys.executable)
"""``python -m tests.warm make zoo``: PyTorch's import, most of a small run's time, is done once for all"""
TRUEUP = [PYTHON, "-m", "trueup"]
LIMIT_SECONDS = 600
ROOT = Path(__file__).resolve().parents[2]


class CommandFailed(Exception):
    """A command ended as it must not; says how."""


class CommandMissing(CommandFailed):
    """trueup has no such command."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A command that ended well."""

    output: str
    said: str
    """on standard error"""
    seconds: float


def run(arguments: list[str], *, allowed: tuple[int, ...] = (0,)) -> Done:
    """Run a command to its end.

    Raises:
        CommandMissing: trueup does not know the command.
        CommandFailed: another status, or too long.
    """
    began = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            arguments,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"took longer than {LIMIT_SECONDS} s: {shlex.join(arguments)}") from None
    if "No such command" in done.stderr:
        raise CommandMissing(arguments[len(TRUEUP)])
    if done.returncode not in allowed:
        said = (done.stderr or done.stdout)[-1500:]
        raise CommandFailed(f"ended with {done.returncode}: {shlex.join(arguments)}\n{said}")
    return Done(output=done.stdout, said=done.stderr, seconds=time.perf_counter() - began)


@dataclass(frozen=True, kw_only=True)
class Program:
    """One training program: a base, maybe with an entry planted."""

    base: Base
    entry: Entry | None = None
    checkpoint: Path | None = None
    """what it goes on from; of a ported base the folder of converted weights and recorded batches"""

    def command(self, steps: int = 2, python: str = PYTHON) -> list[str]:
        """What starts it."""
        planted = []
        if self.entry is not None:
            planted = ["--benign" if self.entry.is_benign else "--fault", self.entry.name]
        options = [*planted, "--steps", str(steps)]
        if self.base.ported and planted:
            options += ["--weights", f"{self.checkpoint}/port.ckpt", "--data", f"{self.checkpoint}/batches"]
        elif self.checkpoint is not None and not self.base.ported:
            options += ["--resume", str(self.checkpoint)]
        return command(self.base, *options, python=python)


def make_checkpoint(base: Base, path: Path) -> None:
    """What a base goes on from."""
    run(command(base, "--steps", str(base.resumes_at), "--save", str(path)))


def hand_over(reference: Path, folder: Path) -> None:
    """What a port needs of its original: converted weights and recorded batches."""
    folder.mkdir()
    to = ["--from", "hf-llama", "--to", "mindformers-llama-fused", "--num-heads", "4", "--num-kv-heads", "2"]
    run([*TRUEUP, "convert-weights", str(reference), str(folder / "port.ckpt"), *to])
    run([*TRUEUP, "export", "--format", "batches", str(reference), str(folder / "batches"), "-q"])


def capture(program: Program, out: Path, *, values: bool, steps: int = 2) -> float:
    """A trace for diagnosis: with the modules' values, or statistics and sketches alone; returns seconds."""
    how = ["--preset", "diagnose"] if values else ["--level", "L0"]
    options = [*how, "--steps", f"0-{steps - 1}", "--quiet", "--overwrite", "-o", str(out)]
    return run([*TRUEUP, "capture", *options, "--", *program.command(steps)]).seconds


def measure_noise(program: Program, reference: Path) -> float:
    """A noise profile beside the reference; returns seconds."""
    options = ["-k", "3", "--quiet", "--reference", str(reference)]
    return run([*TRUEUP, "noise", *options, "--", *program.command()]).seconds


def compare(target: Path, reference: Path) -> Answer:
    """What ``trueup compare`` says."""
    return _asked(["compare", str(target), str(reference), "--json"], from_compare)


def diagnose(target: Path, reference: Path, out: Path, program: Program | None = None) -> Answer:
    """What ``trueup diagnose`` says, with replay where a program is given."""
    replay = [] if program is None else ["--replay", shlex.join(program.command())]
    options = ["-o", str(out), "--no-html", *replay, "--json"]
    return _asked(["diagnose", str(target), str(reference), *options], from_diagnose)


def _asked(arguments: list[str], read: Any) -> Answer:
    try:
        done = run([*TRUEUP, *arguments], allowed=(0, 1, 2))
        if not done.output.strip():  # trueup could not go on; it says why
            return Answer(state=FAILED, note=done.said[-1500:])
        document = json.loads(done.output)
        answer: Answer = read(document, seconds=round(done.seconds, 2))
        return answer
    except CommandMissing as missing:
        return Answer(state=NOT_RUN, note=f"trueup {missing} is not there")
    except (CommandFailed, ValueError, KeyError, TypeError) as error:
        return Answer(state=FAILED, note=f"{type(error).__name__}: {error}"[-1500:])
