"""Kept runs judged again, and their answers held against those that were frozen.

Only the command line and the files it writes are used, in processes of this one: what is judged does not
depend on how the code is arranged inside.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bugzoo.scoreboard import facts
from bugzoo.scoreboard.keeping import Kept
from bugzoo.scoreboard.runs import ACROSS, PASSIVE, REPLAY, SKETCHES, VALUES

FROZEN = Path(__file__).resolve().parents[1] / "frozen.json"
Answers = dict[str, dict[str, Any]]
"""mode -> facts"""


def judge_all(entries: Iterable[Kept], *, jobs: int) -> Iterator[tuple[str, Answers]]:
    """Every entry's answers, in the given order."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(judge_kept, entries)


def judge_kept(one: Kept) -> tuple[str, Answers]:
    """The answers that ``zoo.py`` asks for, from what is kept of an entry."""
    values, reference = one.folder / "values", one.reference / "values"
    answers = {
        VALUES: compare(values, reference),
        SKETCHES: compare(one.folder / "sketches", one.reference / "sketches"),
        PASSIVE: diagnose(values, reference),
    }
    if one.replays:
        answers[REPLAY] = diagnose(values, reference, **one.replays)
    if one.alone is not None:
        answers[ACROSS] = diagnose(values, one.alone)
    return one.entry.name, answers


def compare(target: Path, reference: Path) -> dict[str, Any]:
    """Facts of ``trueup compare``."""
    with tempfile.TemporaryDirectory(prefix="judged-") as out:
        status, document = command("compare", str(target), str(reference), "-o", out, "--no-html", "--json")
        if document is None:
            return {"failed": status}
        return _with_status(facts.of_compare(document, Path(out) / "result.parquet"), status)


def diagnose(
    target: Path, reference: Path, *, replay: Path | None = None, gradients: Path | None = None
) -> dict[str, Any]:
    """Facts of ``trueup diagnose``, with replays made before."""
    replayed = [] if replay is None else ["--replayed", str(replay)]
    replayed += [] if gradients is None else ["--gradients", str(gradients)]
    with tempfile.TemporaryDirectory(prefix="judged-") as out:
        words = ("diagnose", str(target), str(reference), "-o", out, "--no-html", "--json", *replayed)
        status, document = command(*words)
    return {"failed": status} if document is None else _with_status(facts.of_diagnose(document), status)


def command(*words: str) -> tuple[int, dict[str, Any] | None]:
    """Exit status of a trueup command and the document it prints, None where it prints none."""
    from trueup.cli.app import run

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = run(list(words))
    return status, json.loads(printed.getvalue()) if printed.getvalue().strip() else None


def _with_status(found: dict[str, Any], status: int) -> dict[str, Any]:
    """The process's status as well, where it is not the document's."""
    return found if found["exit"] == status else found | {"status": status}


def read(path: Path = FROZEN) -> dict[str, Answers]:
    """Entry -> mode -> facts."""
    found: dict[str, Answers] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write(answers: dict[str, Answers], path: Path = FROZEN) -> None:
    """A line an entry and mode."""
    parts = []
    for name, modes in answers.items():
        lines = (f"  {json.dumps(mode)}: {_line(found)}" for mode, found in modes.items())
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _line(found: object) -> str:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def changes(name: str, found: Answers, frozen: Answers) -> tuple[list[str], list[str]]:
    """A line for each fact that differs; and for each place that is only worded otherwise."""
    lines, texts = [], []
    for mode in dict.fromkeys([*frozen, *found]):
        now, then = found.get(mode, {}), frozen.get(mode, {})
        for key in dict.fromkeys([*then, *now]):
            if now.get(key) != then.get(key):
                line = f"{name}, {mode}, {key}: {_line(now.get(key))} (frozen: {_line(then.get(key))})"
                (texts if key in facts.TEXTS else lines).append(line)
    return lines, texts
