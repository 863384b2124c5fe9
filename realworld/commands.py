"""A program in its own environment: plain, under capture, and in the commands that judge it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bugzoo.scoreboard.answers import FAILED, Answer, from_compare, from_diagnose

from realworld.entries import ROOT, Program

LIMIT_SECONDS = 900
SETTINGS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
"""environment variables of every program"""
KEPT = ("HOME", "LANG", "PATH", "TMPDIR", "TRUEUP_REALWORLD_VENVS", "TORCHINDUCTOR_CACHE_DIR")


class CommandFailed(Exception):
    """A command ended as it must not; says how."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A command that ended."""

    status: int
    output: str
    said: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What each process computed: losses and a digest of the weights, and how long its steps took."""

    ranks: list[dict[str, Any]]

    def same_bits(self, other: Outcome) -> bool:
        """Whether all losses and weights have equal bits on all ranks."""
        return [_bits(one) for one in self.ranks] == [_bits(one) for one in other.ranks]

    @property
    def first_seconds(self) -> float:
        """Time of the first two steps, which capture records."""
        return max(sum(one["seconds"][:2]) for one in self.ranks)

    @property
    def last_seconds(self) -> float:
        """Time of the last step, which capture does not record."""
        return max(one["seconds"][-1] for one in self.ranks)


def _bits(rank: dict[str, Any]) -> tuple[list[str], str]:
    return rank["losses"], rank["weights"]


class Runner:
    """Runs one program's commands in a folder."""

    def __init__(self, program: Program, folder: Path, python: str) -> None:
        self.program, self.folder, self.python = program, folder, python

    def plain(self) -> Outcome:
        """Without capture."""
        self._run(self.program.command(self.python), "plain")
        return self.outcome("plain")

    def capture(self, name: str, *how: str, seed: int = 0, fault: str | None = None) -> Outcome:
        """Under capture, into the folder ``name``."""
        command = self.program.command(self.python, seed=seed, fault=fault)
        self._run(self._trueup("capture", *how, "-q", "-o", self._at(name), "--", *command), name)
        return self.outcome(name)

    def check_run(self, name: str) -> tuple[dict[str, Any], Outcome]:
        """``check-run`` from one command: its document, and what the second run computed."""
        command = self.program.command(self.python)
        words = ["check-run", "--to-the-end", "--json", "-o", self._at(name), "--", *command]
        done = self._run(self._trueup(*words), name, allowed=(0, 1, 2))
        return json.loads(_document(done)), self.outcome(name)

    def parity(self, name: str, wrong: str) -> dict[str, Any]:
        """``check-run --compile-parity`` with one operation computed wrongly: its document."""
        command = [*self.program.command(self.python), *(["--wrong", wrong] if wrong != "none" else [])]
        words = [
            "check-run",
            "--compile-parity",
            "--to-the-end",
            "--json",
            "-o",
            self._at(name),
            "--",
            *command,
        ]
        done = self._run(self._trueup(*words), name, allowed=(0, 1, 2))
        document: dict[str, Any] = json.loads(_document(done))
        return document

    def compare(self, target: str, reference: str) -> tuple[Answer, int]:
        """What ``compare`` says, and its exit status."""
        words = ["compare", self._at(target), self._at(reference), "--json"]
        done = self._run(self._trueup(*words), "compare", allowed=(0, 1, 2))
        answer = _answer(done, from_compare)
        if answer.named and answer.named[0].site == "loss":  # whatever else the model was or was not given
            answer = replace(answer, named=[replace(answer.named[0], stage="loss"), *answer.named[1:]])
        return answer, done.status

    def diagnose(self, target: str, reference: str, *, fault: str | None, replay: bool) -> Answer:
        """What ``diagnose`` says, with a replay of the target."""
        rerun = self.program.command(self.python, fault=fault)
        how = ["--replay", shlex.join(rerun)] if replay else []
        out = self._at(f"diagnosis-{target}")
        words = ["diagnose", self._at(target), self._at(reference), "-o", out, "--no-html", *how, "--json"]
        return _answer(self._run(self._trueup(*words), "diagnose", allowed=(0, 1, 2)), from_diagnose)

    def outcome(self, name: str) -> Outcome:
        """What a run left."""
        found = sorted(self.folder.glob(f"{name}.outcome.*"))
        if len(found) != self.program.processes:
            raise CommandFailed(f"{name}: {len(found)} of {self.program.processes} processes left an outcome")
        return Outcome(ranks=[json.loads(path.read_text(encoding="utf-8")) for path in found])

    def _trueup(self, *words: str) -> list[str]:
        return [self.python, "-m", "trueup", *words]

    def _at(self, name: str) -> str:
        return str(self.folder / name)

    def _run(self, words: list[str], name: str, *, allowed: tuple[int, ...] = (0,)) -> Done:
        began = time.perf_counter()
        environment = {key: os.environ[key] for key in KEPT if key in os.environ} | {
            **SETTINGS,
            "REALWORLD_OUTCOME": self._at(f"{name}.outcome"),
            **self.program.settings,
        }
        process = subprocess.Popen(
            words,
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, said = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise CommandFailed(f"took longer than {LIMIT_SECONDS} s: {shlex.join(words)}") from None
        log = self.folder / "log"
        with log.open("a", encoding="utf-8") as file:
            file.write(
                f"$ {shlex.join(words)}\n{output[-20000:]}\n{said[-20000:]}\n[{process.returncode}]\n\n"
            )
        if process.returncode not in allowed:
            raise CommandFailed(f"ended with {process.returncode}: {shlex.join(words)}\n{said[-1500:]}")
        seconds = time.perf_counter() - began
        return Done(status=process.returncode, output=output, said=said, seconds=seconds)


def _document(done: Done) -> str:
    start = done.output.find("{\n")
    if start < 0:
        raise CommandFailed(f"no document: {(done.said or done.output)[-1500:]}")
    return done.output[start:]


def _answer(done: Done, read: Any) -> Answer:
    try:
        answer: Answer = read(json.loads(_document(done)), seconds=round(done.seconds, 1))
        return answer
    except (CommandFailed, ValueError, KeyError, TypeError) as error:
        return Answer(state=FAILED, note=f"{type(error).__name__}: {error} {done.said}"[-1500:])
