"""What came of a captured run, read from what it left on disk."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from trueup.capture.options import CaptureOptions, StepSet, Task
from trueup.capture.overflow import overflow_sentences
from trueup.store.layout import MANIFEST, other_traces, whole_steps
from trueup.types.trace import RankFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOutcome:
    """What is in a trace after a run."""

    output: Path
    steps: dict[int, list[int]]
    """whole steps -> ranks that have them"""
    seen: bool
    """some process saw a training forward"""
    num_steps_run: int
    """training steps the program made, captured or not"""
    num_failures: int
    num_bytes: int
    stood_aside: str = ""
    """why capture gave up before the program ended, in words"""
    outside_scope: str = ""
    """why scope or list left nothing on any rank, in words"""
    unmatched: tuple[str, ...] = ()
    """of several ranks: names of list that no call of any of them has, in words"""


def outcome_from_folder(output: Path) -> CaptureOutcome:
    """Read the folder of a finished run; never raises for one that is empty, or half written."""
    steps = whole_steps(output) if output.is_dir() else {}
    rank_facts = _rank_facts(output)
    return CaptureOutcome(
        output=output,
        steps=steps,
        seen=(output / MANIFEST).exists() or bool(steps),
        num_steps_run=_steps_run(output),
        num_failures=sum(int(facts.get("num_failures") or 0) for facts in rank_facts),
        stood_aside=next((str(facts["stood_aside"]) for facts in rank_facts if facts.get("stood_aside")), ""),
        outside_scope=_outside_scope(rank_facts),
        unmatched=_unmatched(rank_facts),
        num_bytes=sum(p.stat().st_size for p in output.rglob("*") if p.is_file()) if output.is_dir() else 0,
    )


def _outside_scope(facts: Sequence[RankFacts]) -> str:
    """A rank of a pipeline may have nothing of what was asked for: only where all have is it an error."""
    why = [one.get("outside_scope", "") for one in facts]
    return why[0] if why and all(why) else ""


def _unmatched(facts: Sequence[RankFacts]) -> tuple[str, ...]:
    """A process alone says so itself."""
    each = [one.get("unmatched_names", {}) for one in facts]
    if len(each) < 2:
        return ()
    return tuple(sentence for name, sentence in each[0].items() if all(name in other for other in each))


def has_all_steps(options: CaptureOptions) -> bool:
    """Whether every chosen rank has written the last chosen step."""
    output, last = options.output, options.steps.last
    if last is None:
        return False
    try:
        world_size = int(json.loads((output / MANIFEST).read_text(encoding="utf-8"))["world_size"])
        there = whole_steps(output).get(last, [])
    except (OSError, ValueError, KeyError):
        return False
    return all(rank in there for rank in options.ranks_of(world_size))


def sentences(
    outcome: CaptureOutcome, options: CaptureOptions, *, command: str, advise: bool = True
) -> list[str]:
    """What to tell the person, most important first; with ``advise`` also what to do next."""
    where = shown_path(outcome.output)
    if options.task is Task.OVERFLOW_CHECK and outcome.num_steps_run:
        return overflow_sentences(outcome.output, num_steps=outcome.num_steps_run, shown=where)
    if not outcome.steps and options.observer is not None and outcome.num_steps_run:
        return [f"watched {count(outcome.num_steps_run, 'step')}, none captured in full, in {where}"]
    if not outcome.steps:
        return _why_nothing(outcome, options, command=command, advise=advise)
    if outcome.outside_scope:
        return [outcome.outside_scope]
    ranks = sorted({rank for there in outcome.steps.values() for rank in there})
    lines = [
        f"captured {describe(list(outcome.steps), 'step')} of {describe(ranks, 'rank')} "
        f"at level {options.level.value} ({size(outcome.num_bytes)}) in {where}"
    ]
    incomplete = [step for step, present in outcome.steps.items() if len(present) < len(ranks)]
    if incomplete:
        lines.append(
            f"{describe(incomplete, 'step')}: not every rank finished; the run ended during the step"
        )
    lines += outcome.unmatched
    missing = _missing(outcome, options.steps)
    if missing:
        lines.append(missing)
    if outcome.stood_aside:
        lines.append(f"capture was disabled before the end ({outcome.stood_aside})")
    if outcome.num_failures:
        lines.append(
            f"capture had {count(outcome.num_failures, 'internal error')} (training was not affected); "
            f"see trueup inspect {where}"
        )
    others = other_traces(outcome.output)
    if others:
        shown = ", ".join(shown_path(path) for path in others)
        lines.append(f"other process groups of this job wrote traces of their own: {shown}")
    if advise:
        lines.append(
            f"next: trueup inspect {where}, or capture the other run and trueup compare TARGET REFERENCE "
            "-o OUT"
        )
    return lines


def _why_nothing(
    outcome: CaptureOutcome, options: CaptureOptions, *, command: str, advise: bool
) -> list[str]:
    if outcome.stood_aside:
        what_next = "next: make room there, or name another folder with -o, and capture again"
        return [f"nothing captured: {outcome.stood_aside}", *([what_next] if advise else ())]
    if outcome.seen and outcome.num_steps_run:
        last, made = outcome.num_steps_run - 1, count(outcome.num_steps_run, "training step")
        return [
            f"nothing captured: the program made {made} (0 to {last}), "
            "but none of those asked for with --steps and --ranks was finished and written",
            f"scalars of every step are in {shown_path(outcome.output)}",
        ]
    if outcome.seen:
        return ["nothing captured: training began, but the program ended before its first step was whole"]
    if options.tracer is not None:
        number = f" number {options.tracer}, counted from 0," if options.tracer else ""
        return [
            "nothing captured: the trace that is repeated was made by a trueup.Tracer"
            f"{number} inside its program; no process of {command!r} started one and trained"
        ]
    return [
        f"nothing captured: no process of {command!r} made a training forward "
        "(a torch module or a MindSpore cell called with gradients on)",
        "likely: the program did not train, ended before its first step, uses neither, or starts "
        "python further down with -E, -I or -S or an emptied environment",
        *_of_a_cluster(os.environ),
    ]


def _of_a_cluster(environment: Mapping[str, str]) -> list[str]:
    """What workers of a Ray cluster need, where the program was sent to one."""
    if environment.get("RAY_ADDRESS", "local") == "local":
        return []
    needed = Path(__file__).parents[3]
    return [
        f"the program ran on the Ray cluster {environment['RAY_ADDRESS']}: its workers are captured on nodes "
        f"that have trueup at the same path, {needed}; verl's also where its environment has trueup: "
        'ray.init(runtime_env={"pip": ["trueup"]})'
    ]


def _missing(outcome: CaptureOutcome, wanted: StepSet) -> str | None:
    """A sentence where steps were asked for that the run never reached."""
    if wanted.last is None or wanted.last in outcome.steps or wanted.last < outcome.num_steps_run:
        return None
    ran = max(outcome.num_steps_run, max(outcome.steps) + 1)
    return f"the run ended after {count(ran, 'step')}, before step {wanted.last} that was asked for"


def _steps_run(output: Path) -> int:
    last = -1
    for path in (output / "scalars").glob("rank_*.jsonl"):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                last = max(last, int(json.loads(line)["step"]))
            except (ValueError, KeyError, TypeError):
                continue
    return last + 1


def _rank_facts(output: Path) -> list[RankFacts]:
    found = []
    for path in sorted((output / "ranks").glob("rank_*.json")):
        with contextlib.suppress(OSError, ValueError):
            found.append(cast(RankFacts, dict(json.loads(path.read_text(encoding="utf-8")))))
    return found


def describe(numbers: list[int], noun: str) -> str:
    """``steps 0-1, 5`` from [0, 1, 5].

    Example:
        >>> describe([0, 1, 5], "step"), describe([3], "rank")
        ('steps 0-1, 5', 'rank 3')
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"{noun}{'s' if len(numbers) > 1 else ''} {text}"


def count(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(num_bytes: float) -> str:
    """``52.1 MB`` from a number of bytes.

    Example:
        >>> size(999), size(52_100_000)
        ('999 bytes', '52.1 MB')
    """
    if num_bytes < 1000:
        return f"{num_bytes:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        num_bytes /= 1000
        if num_bytes < 1000:
            return f"{num_bytes:.1f} {unit}"
    return f"{num_bytes / 1000:.1f} TB"


def shown_path(path: Path) -> str:
    """Relative to the working folder where it is inside it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
