"""One program through everything that is asked of it; the results are plain values."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bugzoo.scoreboard.answers import Answer

from realworld.commands import CommandFailed, Outcome, Runner
from realworld.entries import Fault, Program

LEVELS = {
    "L0": ("--preset", "diagnose"),
    "mix": ("--level", "mix"),
    "tensor": ("--level", "mix", "--task", "tensor"),
}
REFERENCE, CHECKED = "L0", "checked"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How much of it."""

    faults: tuple[str, ...] | None = None
    """None: all"""
    replay: bool = True
    seed: bool = True
    parity: bool = True
    only_parity: bool = False
    levels: tuple[str, ...] = ("L0", "tensor")
    """captured beside the mix"""


class Trial:
    """Runs the checks one after the other; what a check cannot do is its result, and the next goes on."""

    def __init__(self, program: Program, folder: Path, python: str) -> None:
        self.program, self.runner = program, Runner(program, folder, python)
        self.results: dict[str, Any] = {"name": program.name, "versions": versions(program)}

    def run(self, asked: Asked) -> dict[str, Any]:
        """Everything."""
        began = time.perf_counter()
        plain = None if asked.only_parity else self._try("plain", self.runner.plain)
        if asked.parity:
            for wrong in ("none", *self.program.parity) if self.program.parity else ():
                self._parity(wrong)
        if plain is not None:
            self.results["losses"] = [float.fromhex(one) for one in plain.ranks[0]["losses"]]
            self.results["capture"] = {}
            self._checked(plain)
            for level in asked.levels:
                self._captured(level, plain)
            if asked.seed:
                self._seed()
            self.results["faults"] = {}
            for name, fault in self.program.faults.items():
                if asked.faults is None or name in asked.faults:
                    self._fault(name, fault, replay=asked.replay)
        self.results["seconds"] = round(time.perf_counter() - began, 1)
        return self.results

    def _try(self, name: str, work: Any, *arguments: Any, **more: Any) -> Any:
        try:
            return work(*arguments, **more)
        except CommandFailed as error:
            self.results.setdefault("failed", {})[name] = str(error)[-2500:]
            return None

    def _captured(self, level: str, plain: Outcome) -> None:
        outcome = self._try(level, self.runner.capture, level, *LEVELS[level])
        if outcome is not None:
            self._note(level, outcome, plain)

    def _note(self, level: str, outcome: Outcome, plain: Outcome) -> None:
        self.results["capture"][level] = {
            "same_bits": outcome.same_bits(plain),
            "times_first_steps": round(outcome.first_seconds / plain.first_seconds, 2),
            "times_last_step": round(outcome.last_seconds / plain.last_seconds, 2),
        }

    def _checked(self, plain: Outcome) -> None:
        done = self._try("check-run", self.runner.check_run, CHECKED)
        if done is None:
            return
        document, outcome = done
        self._note("mix", outcome, plain)
        by_state: dict[str, list[str]] = {}
        for one in document["checks"]:
            by_state.setdefault(one["verdict"], []).append(one["name"])
        self.results["check_run"] = {"exit": document["exit_code"], **by_state}
        again = self._try("again", self.runner.compare, f"{CHECKED}/again", f"{CHECKED}/run")
        if again is not None:
            self.results["again"] = _told(again[0]) | {"exit": again[1]}

    def _parity(self, wrong: str) -> None:
        name = f"parity-{wrong}"
        document = self._try(name, self.runner.parity, name, wrong)
        if document is None:
            return
        said = {one["name"]: one for one in document["checks"]}
        place = next(iter(said["regions"]["places"]), None)
        site = None if place is None else place["site"]
        pattern = self.program.parity.get(wrong)
        right = document["exit_code"] == 0 if pattern is None else fnmatchcase(site or "", pattern)
        facts = {} if place is None else place["detail_reason"]
        self.results.setdefault("parity", {})[wrong] = {
            "exit": document["exit_code"],
            "site": site,
            "operation": facts.get("places", {}).get("operation"),
            "phase": facts.get("places", {}).get("phase"),
            "numbers": {one: said[one]["numbers"] for one in ("regions", "compilation")},
            "right": right,
        }

    def _seed(self) -> None:
        if self._try("seed", self.runner.capture, "seed", *LEVELS["L0"], seed=1) is None:
            return
        answer = self._try("seed", self.runner.diagnose, "seed", REFERENCE, fault=None, replay=False)
        if answer is not None:
            first = answer.named[0].stage if answer.named else None
            self.results["seed"] = _told(answer) | {"right": first in self.program.seed_stages}

    def _fault(self, name: str, fault: Fault, *, replay: bool) -> None:
        target = f"fault-{name}"
        if self._try(target, self.runner.capture, target, *LEVELS["L0"], fault=name) is None:
            return
        said: dict[str, Any] = {}
        compared = self._try(target, self.runner.compare, target, REFERENCE)
        if compared is not None:
            said["compare"] = _judged(compared[0], fault, fault.compare)
        answer = self._try(target, self.runner.diagnose, target, REFERENCE, fault=name, replay=replay)
        if answer is not None:
            said["diagnose"] = _judged(answer, fault, fault.diagnose)
        self.results["faults"][name] = said


def _told(answer: Answer) -> dict[str, Any]:
    named = [
        {"stage": one.stage, "site": one.site, "kinds": one.kinds[:2], "headline": one.headline}
        for one in answer.named
    ]
    said: dict[str, Any] = {
        "state": answer.state,
        "outcome": answer.outcome,
        "named": named[:4],
        "count": len(named),
    }
    return said | ({"note": answer.note} if answer.note else {})


def _judged(answer: Answer, fault: Fault, stage: str) -> dict[str, Any]:
    first = answer.named[0] if answer.named else None
    return _told(answer) | {"right": first is not None and fault.is_named(first, stage)}


def versions(program: Program) -> dict[str, str]:
    """Of the packages that matter to it, as its environment has them."""
    ask = "import importlib.metadata as m, sys; print(*(m.version(one) for one in sys.argv[1:]))"
    words = [str(program.python), "-c", ask, "torch", *program.packages]
    found = subprocess.run(
        words, capture_output=True, text=True, check=False, env=dict(os.environ)
    ).stdout.split()
    return dict(zip(["torch", *program.packages], found, strict=False))


def faults_of(results: dict[str, Any]) -> list[str]:
    """What does not hold, a line each; empty: everything does."""
    lines = [f"{name}: {said.strip().splitlines()[-1]}" for name, said in results.get("failed", {}).items()]
    for level, said in results.get("capture", {}).items():
        if not said["same_bits"]:
            lines.append(f"{level}: capture changes the run")
    if (again := results.get("again")) and again["exit"] != 0:
        lines.append(f"again: exit {again['exit']}: {_first(again)}")
    if (checked := results.get("check_run")) and checked.get("failed"):
        lines.append(f"check-run fails: {', '.join(checked['failed'])}")
    if (seed := results.get("seed")) and not seed["right"]:
        lines.append(f"seed: {_first(seed)}")
    for name, said in results.get("parity", {}).items():
        if not said["right"]:
            lines.append(f"compile parity, {name}: exit {said['exit']}, {said['site'] or 'nothing'} named")
    for name, by in results.get("faults", {}).items():
        lines += [f"fault {name}, {how}: {_first(said)}" for how, said in by.items() if not said["right"]]
    return lines


def _first(said: dict[str, Any]) -> str:
    named = said["named"][0] if said["named"] else None
    return (
        f"{named['stage']} | {named['site']} | {named['headline']}"
        if named
        else f"nothing named {said.get('note', '')}"
    )
